"""A thread that sends a run's heartbeats, so that a slow count of the backlog or a slow event log delays none."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from dagster_harvest.heartbeat import HeartbeatTable, Place
from harvest_lib.errors import DatabaseError, HarvestError
from harvest_lib.outbox import OutboxTable

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 1.0

Connect = Callable[[], "psycopg.Connection[Any]"]


class HeartbeatThread:
    """Sends the heartbeats of one run from `start` to `close`; waits while Postgres is unavailable."""

    def __init__(self, connect: Connect, outbox: OutboxTable, place: Place, *, run_id: str, every_seconds: float):
        self.was_succeeded = threading.Event()
        """Set once another run has the row: this one has to end."""
        self._connect = connect
        self._outbox = outbox
        self._place = place
        self._run_id = run_id
        self._every_seconds = every_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="harvest-heartbeats", daemon=True)
        self._connection: psycopg.Connection[Any] | None = None

    def start(self, *, generation: int | None, stale_after_seconds: float) -> int:
        """Take the row, begin to send heartbeats, and return the generation. Raises HarvestError."""
        self._connection = self._connect()
        heartbeats = HeartbeatTable.beside(self._connection, self._outbox)
        heartbeats.create()
        claimed = heartbeats.claim(
            self._place, run_id=self._run_id, generation=generation, stale_after_seconds=stale_after_seconds
        )
        self._thread.start()
        return claimed

    def close(self) -> None:
        """Stop, and record that the run stopped in order unless Postgres is unavailable or another run has the row."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            return  # it waits for a server that does not answer, and so would we
        if self._connection is None:
            return
        with contextlib.suppress(HarvestError):
            HeartbeatTable.beside(self._connection, self._outbox).stop(self._place, self._run_id)
        self._connection.close()

    def _run(self) -> None:
        is_away = False
        while not self._ending.wait(self._every_seconds):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                is_ours = HeartbeatTable.beside(self._connection, self._outbox).renew(self._place, self._run_id)
            except DatabaseError as error:
                if not is_away:
                    _log.warning("heartbeat_failed", extra={"reason": str(error)})
                is_away = True
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                continue
            is_away = False
            if not is_ours:
                self.was_succeeded.set()
                return
