"""The trigger that gives each row the transaction that writes it here, whatever the INSERT says.

A row's `transaction_id` comes from the column's default. An INSERT … SELECT or a COPY of old rows brings other ones, of
transactions that every subscription has passed: such a row would never be delivered. The trigger puts the right one in
its place. Of a row that has the right one it costs a comparison, as its function is not called; a COPY inserts row by
row, as for any such trigger.

Rows that the logical replication of Postgres brings fire no trigger, unless it is ALWAYS enabled. They are left as they
are for `harvest subscriptions move`, which goes by the numbers of the old server. Harvested they cannot be meanwhile:
`check_replication` refuses that.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import translated
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.native_table import beside
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable

TRIGGER = "harvest_stamp"

_CREATE_FUNCTION = """\
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS
$harvest$BEGIN NEW.transaction_id := pg_catalog.pg_current_xact_id(); RETURN NEW; END$harvest$"""

_CREATE_TRIGGER = """\
CREATE TRIGGER {trigger} BEFORE INSERT ON {outbox} FOR EACH ROW
WHEN (NEW.transaction_id IS DISTINCT FROM pg_catalog.pg_current_xact_id()) EXECUTE FUNCTION {function}()"""

# The outbox and its segments: replication may write into either.
_TABLES = """
WITH tables AS (
  SELECT to_regclass(%(outbox)s)::oid AS oid
  UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass(%(outbox)s)
)
"""

_STATE = f"""{_TABLES}
SELECT pg_has_role(c.relowner, 'USAGE'),
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND tgname = %(trigger)s AND tgenabled IN ('O', 'A'))
FROM pg_class AS c WHERE c.oid = to_regclass(%(outbox)s)
"""  # noqa: S608 - it is above

_REPLICATED = f"""{_TABLES}
SELECT s.subname::text, min(t.oid::regclass::text)
FROM tables AS t JOIN pg_subscription_rel AS r ON r.srrelid = t.oid JOIN pg_subscription AS s ON s.oid = r.srsubid
WHERE s.subenabled AND NOT EXISTS (
  SELECT FROM pg_trigger AS g JOIN pg_proc AS p ON p.oid = g.tgfoid
  WHERE g.tgrelid = t.oid AND g.tgenabled = 'A' AND p.prosrc LIKE '%%pg_current_xact_id()%%'
)
GROUP BY s.subname ORDER BY s.subname LIMIT 1
"""  # noqa: S608 - as above

_ALWAYS = f"""{_TABLES}
SELECT oid::regclass::text FROM tables ORDER BY oid
"""  # noqa: S608 - as above


def function_of(outbox: OutboxTable) -> OutboxTable:
    """Name the function of the trigger, in the outbox's schema."""
    return beside(outbox, "_stamp")


def stamp_statements(outbox: OutboxTable) -> list[sql.Composed]:
    """Return the DDL of the trigger for a native table that has none."""
    names = {
        "function": function_of(outbox).identifier,
        "outbox": outbox.identifier,
        "trigger": sql.Identifier(TRIGGER),
    }
    return [sql.SQL(each).format(**names) for each in (_CREATE_FUNCTION, _CREATE_TRIGGER)]


def is_stamped(connection: psycopg.Connection[Any], outbox: OutboxTable) -> bool:
    """Return True if the table has the trigger, and it fires."""
    return _state(connection, outbox)[1]


def add_stamp(
    connection: psycopg.Connection[Any], outbox: OutboxTable, *, patience_seconds: float = PATIENCE_SECONDS
) -> bool | None:
    """Make the trigger unless the native table has it; return True if it was made, None if only the owner may.

    Writers wait as for any short lock. Needs a connection in autocommit.
    """
    placed = outbox.placed(connection)
    is_owner, is_there = _state(connection, placed)
    if is_there or not is_owner:
        return False if is_there else None

    def change() -> None:
        connection.execute(
            sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(TRIGGER), placed.identifier)
        )
        for statement in stamp_statements(placed):
            connection.execute(statement)

    with exclusively(connection, placed, patience_seconds):
        with_short_locks(connection, placed, change, patience_seconds=patience_seconds)
    return True


def check_replication(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Raise OutboxTableError while logical replication writes rows that a subscription would pass over."""
    with translated():
        row = connection.execute(_REPLICATED, {"outbox": str(outbox)}).fetchone()
    if row is None:
        return
    name = sql.Identifier(row[0]).as_string(None)
    raise OutboxTableError(
        f"logical replication writes rows into {outbox} that would never be delivered",
        evidence=f"the subscription {row[0]!r} of Postgres writes into {row[1]}; its rows have transaction ids of "
        "another server, which the subscriptions here have passed",
        next_step=f"to go on here with what was harvested there: ALTER SUBSCRIPTION {name} DISABLE, then `harvest "
        "subscriptions move`; to harvest here what replication brings: `harvest init`, then, as the owner, "
        + "; ".join(_always_statements(connection, outbox)),
    )


def _always_statements(connection: psycopg.Connection[Any], outbox: OutboxTable) -> Sequence[str]:
    """Return the statements that have the trigger fire for replicated rows, in segments that are there too."""
    with translated():
        tables = connection.execute(_ALWAYS, {"outbox": str(outbox)}).fetchall()
    return [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {TRIGGER}" for (table,) in tables]


def _state(connection: psycopg.Connection[Any], outbox: OutboxTable) -> tuple[bool, bool]:
    with translated():
        row = connection.execute(_STATE, {"outbox": str(outbox), "trigger": TRIGGER}).fetchone()
    return (row[0], row[1]) if row is not None else (False, False)
