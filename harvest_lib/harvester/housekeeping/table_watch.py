"""Detects that the table was migrated to the native layout, after this process has chosen to mark it.

`auto` is resolved once, when a process starts. A process that marks would mark the native table too. A process that
starts later only reads the table, and they stand in different elections. So the marking process ends, with an error
that asks for a restart.
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
    """`choices` were made when the table had goharvest's layout."""

    def __init__(self, conninfo: str, table: OutboxTable, choices: Choices) -> None:
        self._conninfo = conninfo
        self._table = table
        self._choices = choices

    def begin(self, changed: Callable[[HarvestError], None], stopping: threading.Event) -> None:
        """Check every `EVERY_SECONDS` until `stopping` is set; returns at once. `changed` gets the error, once."""
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
        """Raise OutboxTableError if the table is native by now. If Postgres does not answer, a later call checks."""
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
