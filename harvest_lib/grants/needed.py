"""Adds the missing GRANT to errors about missing rights, for tables other than an outbox's tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.postgres.translation import translated

_LACKING = """
WITH named AS (SELECT parse_ident(%(table)s) AS parts),
place AS (
  SELECT CASE cardinality(parts) WHEN 1 THEN coalesce(current_schema(), 'public') ELSE parts[1] END AS name FROM named
),
found AS (SELECT name, (SELECT oid FROM pg_namespace WHERE nspname = name) AS oid FROM place)
SELECT array_remove(ARRAY[
  CASE WHEN (oid IS NULL OR %(makes_schema)s)
    AND NOT has_database_privilege(current_database(), 'CREATE')
    THEN format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), current_user) END,
  CASE WHEN oid IS NOT NULL AND NOT (has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE'))
    THEN format('GRANT USAGE, CREATE ON SCHEMA %%I TO %%I', name, current_user) END
], NULL)
FROM found
"""


@contextmanager
def creating(
    connection: psycopg.Connection[Any],
    what: str,
    table: sql.Identifier,
    *,
    makes_schema: bool = False,
    commands: str = "",
) -> Iterator[None]:
    """Run a block that creates a table, and its schema if `makes_schema`. If rights are missing, raise
    DatabaseAccessDenied with the GRANT statements, or with `commands` if there are any.

    The block must end its transaction before it raises.
    """
    try:
        with translated():
            yield
    except DatabaseAccessDenied as error:
        values = {"table": table.as_string(None), "makes_schema": makes_schema}
        with translated():
            row = connection.execute(_LACKING, values).fetchone()
        if row is None or not row[0]:
            raise
        raise _denied(connection, f"make {what}", commands or "; ".join(row[0]), error) from error


@contextmanager
def using(connection: psycopg.Connection[Any], table: sql.Identifier, privileges: LiteralString) -> Iterator[None]:
    """Run a block that uses a table. If rights are missing, raise DatabaseAccessDenied with the GRANT of
    `privileges`."""
    try:
        with translated():
            yield
    except DatabaseAccessDenied as error:
        grant = sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(privileges), table, sql.Identifier(connection.info.user))
        raise _denied(connection, f"use {table.as_string(None)}", grant.as_string(None), error) from error


def _denied(
    connection: psycopg.Connection[Any], what: str, grants: str, error: DatabaseAccessDenied
) -> DatabaseAccessDenied:
    return DatabaseAccessDenied(
        f"the user {connection.info.user!r} may not {what}",
        evidence=error.evidence,
        next_step=f"as the owner: {grants}",
    )
