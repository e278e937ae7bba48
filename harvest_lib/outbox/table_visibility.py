"""Tables that Postgres calls missing: dropped, or in a schema that we may not use any more. Where the search path
finds the schema, Postgres says the same of both.

Promise: revoked privileges are reported as DatabaseAccessDenied, not as a missing table. So a caller that waits for
privileges waits for these too. A table that was really dropped is reported as missing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.database import connect, translated
from harvest_lib.errors import DatabaseUnavailable, OutboxTableError
from harvest_lib.outbox.table import OutboxTable

_ABSENT = "SELECT 1 WHERE to_regclass(%s) IS NULL"


@contextmanager
def translate_missing_table(conninfo: Callable[[], str], tables: Sequence[OutboxTable]) -> Iterator[None]:
    """Inside, where Postgres says that one of the tables does not exist: raise DatabaseAccessDenied if it is only
    hidden from us, and DatabaseUnavailable if it is there again or nobody answers. Asks on a connection of its own, by
    the connection string that `conninfo` returns."""
    try:
        yield
    except OutboxTableError as error:
        if isinstance(error.__cause__, pg.UndefinedTable):
            _ask_again(conninfo(), tables, error)
        raise


def _ask_again(conninfo: str, tables: Sequence[OutboxTable], error: OutboxTableError) -> None:
    """Return if a table is not there."""
    with connect(conninfo) as connection:
        for table in tables:
            if _is_absent(connection, table):
                table.refuse_hidden(connection)
                if _is_absent(connection, table):  # else the privilege was granted in between
                    return
    raise DatabaseUnavailable(
        "a table was missing for a moment, and is there again",
        evidence=error.evidence,
        next_step="none: it is asked again",
    ) from error


def _is_absent(connection: psycopg.Connection[Any], table: OutboxTable) -> bool:
    with translated():
        return connection.execute(sql.SQL(_ABSENT), (str(table),)).fetchone() is not None
