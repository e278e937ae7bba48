"""The progress line that a leader writes to the log every minute: records delivered, rate, age of the backlog.

A separate thread writes the line, and uses a separate connection, so that no record waits for the line.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import HarvestError
from harvest_lib.postgres.database import connect
from harvest_lib.process import threads

_log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0


class ProgressLog:
    """Writes the progress line. `delivered` returns the total number of delivered records. `leads` returns True if this
    process leads. `backlog_age_seconds` queries Postgres for the age of the oldest record in the backlog."""

    def __init__(
        self,
        conninfo: str,
        *,
        delivered: Callable[[], int],
        leads: Callable[[], bool],
        backlog_age_seconds: Callable[[psycopg.Connection[Any]], float],
    ) -> None:
        self._conninfo = conninfo
        self._delivered = delivered
        self._leads = leads
        self._backlog_age_seconds = backlog_age_seconds
        self._before = 0, 0.0

    def begin(self, stopping: threading.Event) -> None:
        """Start a thread that writes the line every minute until `stopping` is set, and return at once."""
        threads.repeat("harvest-progress", self.log, stopping=stopping, pause_seconds=lambda: EVERY_SECONDS)

    def log(self) -> None:
        """Log the progress since the last call, if this process leads. The first call logs nothing: it only begins the
        first period."""
        before, then = self._before
        delivered, now = self._before = self._delivered(), boot_seconds()
        if then and self._leads():
            rate = round((delivered - before) / (now - then), 1)
            age = self._age()
            _log.info(
                "harvest_progress",
                extra={"delivered": delivered, "records_per_second": rate, "backlog_age_seconds": age},
            )

    def _age(self) -> float | None:
        """Return the age of the backlog, or None if Postgres does not answer. Other parts log that failure."""
        try:
            with connect(self._conninfo) as connection:
                return round(self._backlog_age_seconds(connection), 1)
        except (HarvestError, psycopg.Error):
            return None
