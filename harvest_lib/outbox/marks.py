"""Rehearsal of marks: triggers, keys of other tables and publications may refuse what the grants allow."""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import in_statement, translated
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.table import OutboxTable

_FIRST = "SELECT id FROM {table} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"

_REHEARSED = {
    "UPDATE": "UPDATE {table} SET leader_id = gen_random_uuid() WHERE id = %s",
    "DELETE": "DELETE FROM {table} WHERE id = %s",
}


def rehearse_marks(connection: psycopg.Connection[Any], table: OutboxTable) -> None:
    """Mark and purge the first record that no other session has locked, and undo both; the lock on it lasts for the
    statements. Without a record only what is refused for the table as a whole is found.

    Raises OutboxTableError if the record is passed over without an error, DatabaseError for a refusal.
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
                    evidence=f"its first record was passed over by {what}, without an error",
                    next_step=f"see its triggers and rules with psql's `\\d {table}`, and disable the one that does it",
                )
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a trigger, or a key, may wait for the end
