"""Rehearsal of marks: triggers, foreign keys and publications may refuse statements that the grants allow."""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_FIRST = "SELECT id FROM {table} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"

_REHEARSED = {
    "UPDATE": "UPDATE {table} SET leader_id = gen_random_uuid() WHERE id = %s",
    "DELETE": "DELETE FROM {table} WHERE id = %s",
}


def rehearse_marks(connection: psycopg.Connection[Any], table: OutboxTable) -> None:
    """Mark and purge the first record that no other session has locked, and roll both back. The record stays locked
    until the rollback. On an empty table, only refusals that concern the whole table are found.

    Raises OutboxTableError if a statement skips the record without an error, and DatabaseError if Postgres refuses a
    statement.
    """
    with translated(), connection.transaction(force_rollback=True):
        named = in_statement(table.identifier)
        row = connection.execute(sql.SQL(_FIRST).format(table=table.identifier)).fetchone()
        record_id = row[0] if row is not None else None
        for what, statement in _REHEARSED.items():
            done = connection.execute(sql.SQL(statement).format(table=named), (record_id,))
            if row is not None and not done.rowcount:
                raise OutboxTableError(
                    f"the table {table} keeps its records from being marked and purged",
                    evidence=f"{what} skipped its first record, without an error",
                    next_step=f"list its triggers and rules with psql's `\\d {table}`, and disable the cause",
                )
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # triggers and foreign keys may be deferred
