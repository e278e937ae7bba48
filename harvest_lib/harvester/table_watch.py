"""Notices that the table was turned into the native one, after this process has chosen to mark it.

`auto` is decided once, when a process starts. A process that marks would go on with that, through the new table; one
that starts later only reads it, and they stand in different elections. So the one that marks ends, with an error that
says to restart it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from harvest_lib import threads
from harvest_lib.config.choices import Choices
from harvest_lib.database import connect
from harvest_lib.errors import DatabaseError, HarvestError, OutboxTableError
from harvest_lib.outbox import OutboxTable

EVERY_SECONDS = 5.0


class TableWatch:
    """`choices` are those that were made when the table had goharvest's layout."""

    def __init__(self, conninfo: str, table: OutboxTable, choices: Choices) -> None:
        self._conninfo = conninfo
        self._table = table
        self._choices = choices

    def begin(self, changed: Callable[[HarvestError], None], stopping: threading.Event) -> None:
        """Look now and then until `stopping` is set; returns at once. `changed` is called, once, with the error."""
        ended = threading.Event()

        def look() -> None:
            try:
                self.look()
            except OutboxTableError as error:
                ended.set()
                changed(error)

        threads.repeat(
            "harvest-table",
            look,
            stopping=stopping,
            pause_seconds=lambda: EVERY_SECONDS,
            is_needed=lambda: not ended.is_set(),
        )

    def look(self) -> None:
        """Raise OutboxTableError if the table is native by now. If Postgres cannot be asked now, a later look asks."""
        kind = "goharvest"
        with suppress(DatabaseError, OutboxTableError), connect(self._conninfo) as connection:
            kind = self._table.kind(connection)
        if kind == "native":
            raise OutboxTableError(
                f"the table {self._table} has become native since this process started",
                evidence=f"it was started with {self._choices}",
                next_step="restart all processes of the pool: each chooses again; or name `source`, `delivery` and "
                "`leadership` in the configuration, to keep what they were",
            )
