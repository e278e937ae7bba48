"""The thread that beats for a run, so that a count of a long backlog or a slow event log costs no beat."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from dagster_harvest.heartbeat import Heartbeats, Place
from harvest_lib.errors import DatabaseError, HarvestError
from harvest_lib.outbox import OutboxTable

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 1.0

Connect = Callable[[], "psycopg.Connection[Any]"]


class Beating:
    """Beats for one run from `start` to `close`; waits outages of Postgres out."""

    def __init__(self, connect: Connect, outbox: OutboxTable, place: Place, *, run_id: str, every_seconds: float):
        self.was_succeeded = threading.Event()
        """Set once another run has the row: this one has to end."""
        self._connect = connect
        self._outbox = outbox
        self._place = place
        self._run_id = run_id
        self._every_seconds = every_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="harvest-beats", daemon=True)
        self._connection: psycopg.Connection[Any] | None = None

    def start(self, *, generation: int | None, stale_after_seconds: float) -> int:
        """Take the row, begin to beat, and return the generation. Raises HarvestError."""
        self._connection = self._connect()
        beats = Heartbeats.beside(self._connection, self._outbox)
        beats.create()
        claimed = beats.claim(
            self._place, run_id=self._run_id, generation=generation, stale_after_seconds=stale_after_seconds
        )
        self._thread.start()
        return claimed

    def close(self) -> None:
        """Stop beating, and say that the run stopped in order unless Postgres is away or the row is another's."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            return  # it waits for a server that does not answer, and so would we
        if self._connection is None:
            return
        with contextlib.suppress(HarvestError):
            Heartbeats.beside(self._connection, self._outbox).stop(self._place, self._run_id)
        self._connection.close()

    def _run(self) -> None:
        is_away = False
        while not self._ending.wait(self._every_seconds):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                is_ours = Heartbeats.beside(self._connection, self._outbox).beat(self._place, self._run_id)
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
