"""Tables that are out of sight: dropped, or in a schema that we may not use any more. Postgres says the same of both,
where the schema is found by the search path.

Promise: rights that were taken away read as rights, so that whoever waits for rights waits for these too. A table that
is really gone stays gone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.database import connect, translated
from harvest_lib.errors import DatabaseUnavailable, OutboxTableError
from harvest_lib.outbox.table import OutboxTable

_ABSENT = "SELECT 1 WHERE to_regclass(%s) IS NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The tables that a harvester works with, and where to ask for them."""

    conninfo: str
    tables: Sequence[OutboxTable]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, where Postgres says that a table does not exist: raise DatabaseAccessDenied if it is only hidden from
        us, and DatabaseUnavailable if it is there again or nobody answers. Asks on a connection of its own."""
        try:
            yield
        except OutboxTableError as error:
            if isinstance(error.__cause__, pg.UndefinedTable):
                self._look_again(error)
            raise

    def _look_again(self, error: OutboxTableError) -> None:
        """Return if a table is not there."""
        with connect(self.conninfo) as connection:
            for table in self.tables:
                if _is_absent(connection, table):
                    table.refuse_hidden(connection)
                    return
        raise DatabaseUnavailable(
            "a table was not to be seen for a moment, and is there again",
            evidence=error.evidence,
            next_step="none: it is asked again",
        ) from error


def _is_absent(connection: psycopg.Connection[Any], table: OutboxTable) -> bool:
    with translated():
        return connection.execute(sql.SQL(_ABSENT), (table.identifier.as_string(connection),)).fetchone() is not None
