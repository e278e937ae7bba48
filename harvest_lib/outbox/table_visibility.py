"""Tables that Postgres reports as missing: dropped, or in a schema without USAGE, for which Postgres has the same error
where the search path names the schema. And tables whose columns were given other types.

Promises
- Revoked privileges are reported as DatabaseAccessDenied, not as a missing table. So a caller that waits for privileges
  waits for these too. A dropped table is reported as missing.
- A column of another type is named, with the statement that corrects it; Postgres would name a missing function.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.errors import DatabaseUnavailable, OutboxTableError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres import postgres_causes
from harvest_lib.postgres.database import connect, translated

_ABSENT = "SELECT 1 WHERE to_regclass(%s) IS NULL"


_STALE_PLAN = "0A000"
"""The type of a column has changed since a statement was prepared, or another cause, which `check` does not find."""


@contextmanager
def translate_table_errors(
    conninfo: Callable[[], str], tables: Sequence[OutboxTable], check: Callable[[psycopg.Connection[Any]], object]
) -> Iterator[None]:
    """Translate errors raised inside. If Postgres reports a table as missing: raise DatabaseAccessDenied if it is only
    hidden from this role, and DatabaseUnavailable if it exists again or the server does not answer. If a statement no
    longer fits the columns: raise the error of `check`. Queries a connection of its own, opened with the connection
    string that `conninfo` returns."""
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
    """Return if a table is missing; raise if it is hidden, or exists again."""
    with connect(conninfo) as connection:
        for table in tables:
            if _is_absent(connection, table):
                table.refuse_hidden(connection)
                if _is_absent(connection, table):  # otherwise the privilege was granted in between
                    return
    raise DatabaseUnavailable(
        "a table was missing for a moment, and exists again",
        evidence=error.evidence,
        next_step="none: the query is repeated",
    ) from error


def _is_absent(connection: psycopg.Connection[Any], table: OutboxTable) -> bool:
    with translated():
        return connection.execute(sql.SQL(_ABSENT), (str(table),)).fetchone() is not None
