"""Tables that Postgres calls missing: dropped, or in a schema that we may not use any more. Where the search path
finds the schema, Postgres says the same of both. And tables whose columns have got other types.

Promises
- Revoked privileges are reported as DatabaseAccessDenied, not as a missing table. So a caller that waits for privileges
  waits for these too. A table that was really dropped is reported as missing.
- A column of another type is named, with the statement that mends it; Postgres names a function that it lacks for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib import postgres_causes
from harvest_lib.database import connect, translated
from harvest_lib.errors import DatabaseUnavailable, OutboxTableError
from harvest_lib.outbox.table import OutboxTable

_ABSENT = "SELECT 1 WHERE to_regclass(%s) IS NULL"


_STALE_PLAN = "0A000"
"""The type of a column has changed since a statement was prepared; among other causes, which `check` does not find."""


@contextmanager
def translate_table_errors(
    conninfo: Callable[[], str], tables: Sequence[OutboxTable], check: Callable[[psycopg.Connection[Any]], object]
) -> Iterator[None]:
    """Inside, where Postgres says that one of the tables does not exist: raise DatabaseAccessDenied if it is only
    hidden from us, and DatabaseUnavailable if it is there again or nobody answers. Where a statement does not fit the
    columns any more: raise what `check` raises. Asks on a connection of its own, by the connection string that
    `conninfo` returns."""
    try:
        yield
    except OutboxTableError as error:
        if isinstance(error.__cause__, pg.UndefinedTable):
            _ask_again(conninfo(), tables, error)
        elif isinstance(error.__cause__, psycopg.Error):
            _check_again(conninfo(), check, error)
        raise
    except DatabaseUnavailable as error:
        if postgres_causes.sqlstate(error) == _STALE_PLAN:
            _check_again(conninfo(), check, error)
        raise


def _check_again(
    conninfo: str, check: Callable[[psycopg.Connection[Any]], object], error: OutboxTableError | DatabaseUnavailable
) -> None:
    try:
        with connect(conninfo) as connection:
            check(connection)
    except OutboxTableError as found:
        raise found from error


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
