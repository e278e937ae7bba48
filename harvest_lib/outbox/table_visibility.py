"""Better errors for two cases: a table that Postgres reports as missing, and a column whose type was changed.

Postgres reports a table as missing if it was dropped, and also if the role lacks USAGE on its schema and the schema
comes from the search path.

Promises
- A lack of USAGE is reported as DatabaseAccessDenied, not as a missing table. So a caller that waits for privileges
  waits for USAGE too. A dropped table is reported as missing.
- For a column of another type, the error names the column and the statement that corrects it. The error of Postgres
  would name a missing function.
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
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated

_ABSENT = "SELECT 1 WHERE to_regclass(%s) IS NULL"


_STALE_PLAN = "0A000"
"""SQLSTATE `feature_not_supported`. Postgres raises it if the type of a column has changed since a statement was
prepared. It has other causes too, for which `check` finds no error."""


@contextmanager
def translate_table_errors(
    conninfo: Callable[[], str], tables: Sequence[OutboxTable], check: Callable[[psycopg.Connection[Any]], object]
) -> Iterator[None]:
    """Translate the errors that are raised inside the `with` block. If Postgres reports a missing table that is only
    hidden from this role, raise DatabaseAccessDenied. If the table exists again, or the server does not answer, raise
    DatabaseUnavailable. If a statement no longer fits the columns, raise the error that `check` raises. All queries use
    a separate connection, opened with the connection string that `conninfo` returns."""
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
    """Query again whether the tables exist. Return if a table is missing. Raise DatabaseAccessDenied if a table is
    hidden, and DatabaseUnavailable if all tables exist again."""
    with connect(conninfo) as connection:
        for table in tables:
            if _is_absent(connection, table):
                table.refuse_hidden(connection)
                if _is_absent(connection, table):  # if not, the privilege was granted in between
                    return
    raise DatabaseUnavailable(
        "a table was missing for a moment, and exists again",
        evidence=error.evidence,
        next_step="none: the query is repeated",
    ) from error


def _is_absent(connection: psycopg.Connection[Any], table: OutboxTable) -> bool:
    with translated():
        return connection.execute(sql.SQL(_ABSENT), (str(table),)).fetchone() is not None
