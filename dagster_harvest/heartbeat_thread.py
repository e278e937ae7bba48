"""A thread that sends a run's heartbeats, so that neither a slow backlog query nor a slow event log delays them."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from dagster_harvest.heartbeat import HeartbeatPlace, HeartbeatTable
from harvest_lib.errors import HarvestError
from harvest_lib.outbox import OutboxTable
from harvest_lib.process import threads
from harvest_lib.process.threads import reason_of

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 1.0

Connect = Callable[[], "psycopg.Connection[Any]"]


class HeartbeatThread:
    """Sends the heartbeats of a run from `start` to `close`. While Postgres is unavailable, the thread tries again."""

    def __init__(
        self, connect: Connect, outbox: OutboxTable, place: HeartbeatPlace, *, run_id: str, every_seconds: float
    ):
        self.was_succeeded = threading.Event()
        """Set when another run has claimed the row. This run must then end."""
        self._connect = connect
        self._outbox = outbox
        self._place = place
        self._run_id = run_id
        self._every_seconds = every_seconds
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_away = False
        self._connection: psycopg.Connection[Any] | None = None

    def start(self, *, generation: int | None, stale_after_seconds: float) -> int:
        """Claim the row, begin to send heartbeats, and return the run's generation. Raises HarvestError."""
        self._connection = self._connect()
        heartbeats = HeartbeatTable.beside(self._connection, self._outbox)
        heartbeats.create()
        claimed = heartbeats.claim(
            self._place, run_id=self._run_id, generation=generation, stale_after_seconds=stale_after_seconds
        )
        self._thread = threads.repeat(
            "harvest-heartbeats",
            self._renew,
            stopping=self._ending,
            pause_seconds=lambda: 0.0,
            on_error=self._lost,
        )
        return claimed

    def close(self) -> None:
        """Stop the thread. Record the orderly stop if Postgres is available and the row still belongs to this run."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        if self._thread is not None and self._thread.is_alive():
            return  # the server does not answer the heartbeat thread, and would not answer this thread either
        if self._connection is None:
            return
        with contextlib.suppress(HarvestError):
            HeartbeatTable.beside(self._connection, self._outbox).stop(self._place, self._run_id)
        self._connection.close()

    def _renew(self) -> None:
        if self._ending.wait(self._every_seconds):
            return
        if self._connection is None:
            self._connection = self._connect()
        if not HeartbeatTable.beside(self._connection, self._outbox).renew(self._place, self._run_id):
            self.was_succeeded.set()
            self._ending.set()
        self._is_away = False

    def _lost(self, error: BaseException) -> None:
        """Log the first error since the last successful heartbeat, and close the connection. The next heartbeat opens
        another."""
        if not self._is_away:
            reason = str(error) if isinstance(error, HarvestError) else reason_of(error)
            _log.warning("heartbeat_failed", extra={"reason": reason})
        self._is_away = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
