"""Detects a migration of the table to the native layout while this process marks the table.

`auto` is resolved once, when a process starts. After a migration, a process that marks would continue to mark the
native table. But a process that starts after the migration only reads the table, and takes part in another election. So
the process that marks ends, with an error that asks for a restart.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from harvest_lib.config.choices import Choices
from harvest_lib.errors import DatabaseError, HarvestError, OutboxTableError
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect
from harvest_lib.process import threads

EVERY_SECONDS = 5.0


class TableWatch:
    """Checks periodically whether the table is native. `choices` are the choices for goharvest's layout."""

    def __init__(self, conninfo: str, table: OutboxTable, choices: Choices) -> None:
        self._conninfo = conninfo
        self._table = table
        self._choices = choices

    def begin(self, changed: Callable[[HarvestError], None], stopping: threading.Event) -> None:
        """Start a thread that checks every `EVERY_SECONDS` until `stopping` is set, and return at once. After a
        migration, the thread calls `changed` with the error and ends."""
        ended = threading.Event()

        def check() -> None:
            try:
                self.check()
            except OutboxTableError as error:
                ended.set()
                changed(error)

        threads.repeat(
            "harvest-table",
            check,
            stopping=stopping,
            pause_seconds=lambda: EVERY_SECONDS,
            is_needed=lambda: not ended.is_set(),
        )

    def check(self) -> None:
        """Raise OutboxTableError if the table has become native. If Postgres does not answer, do nothing: a later call
        checks again."""
        kind = "goharvest"
        with suppress(DatabaseError, OutboxTableError), connect(self._conninfo) as connection:
            kind = self._table.kind(connection)
        if kind == "native":
            raise OutboxTableError(
                f"the table {self._table} has become native since this process started",
                evidence=f"it was started with {self._choices}",
                next_step="restart all processes of the pool: each chooses again; or name `source`, `delivery` and "
                "`leadership` in the configuration, to keep the present choices",
            )
