"""The trigger that sets a new row's `transaction_id` to the inserting transaction, whatever id the INSERT contains.

Usually the default of the column sets `transaction_id`. But an INSERT … SELECT or a COPY of old rows contains ids of
transactions that every subscription has already read: such rows would never be delivered. The trigger replaces these
ids. For a row with the right id, the trigger costs a comparison, and does not call its function. As with any BEFORE
INSERT trigger, a COPY inserts row by row.

Rows that Postgres' logical replication inserts fire a trigger only if it is enabled ALWAYS. The same applies to any
other session with `session_replication_role = replica`, which leaves no trace in the catalogue. Replicated rows keep
the ids of the old server, since `harvest subscriptions move` needs them. Until that command has run, these rows cannot
be harvested: `check_replication` raises an error.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.native_table import beside
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

TRIGGER = "harvest_stamp"

_NAMED = 3
"""Maximum number of tables that an error lists by name."""

_CREATE_FUNCTION = """\
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS
$harvest$BEGIN NEW.transaction_id := pg_catalog.pg_current_xact_id(); RETURN NEW; END$harvest$"""

_CREATE_TRIGGER = """\
CREATE TRIGGER {trigger} BEFORE INSERT ON {outbox} FOR EACH ROW
WHEN (NEW.transaction_id IS DISTINCT FROM pg_catalog.pg_current_xact_id()) EXECUTE FUNCTION {function}()"""

# The outbox and its segments. Replication may write into the outbox or directly into a segment.
_TABLES = """
WITH tables AS (
  SELECT to_regclass(%(outbox)s)::oid AS oid
  UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass(%(outbox)s)
)
"""

# Columns: whether this role has the owner's rights, the owner, the tables where the trigger is missing or disabled, and
# whether the trigger fires for replicated rows.
_STATE = f"""{_TABLES}, states AS (
  SELECT tables.oid, max(tgenabled::text) AS enabled
  FROM tables LEFT JOIN pg_trigger ON tgrelid = tables.oid AND tgname = %(trigger)s
  GROUP BY tables.oid
)
SELECT pg_has_role(c.relowner, 'USAGE'), quote_ident(pg_get_userbyid(c.relowner)),
       ARRAY(SELECT oid::regclass::text FROM states WHERE enabled IS NULL OR enabled NOT IN ('O', 'A') ORDER BY oid),
       EXISTS (SELECT FROM states WHERE enabled = 'A')
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
    """Return the name of the trigger's function, in the outbox's schema."""
    return beside(outbox, "_stamp")


def stamp_statements(outbox: OutboxTable) -> list[sql.Composed]:
    """Return the statements that create the trigger and its function on a native table that lacks the trigger."""
    names = {
        "function": function_of(outbox).identifier,
        "outbox": outbox.identifier,
        "trigger": sql.Identifier(TRIGGER),
    }
    return [sql.SQL(each).format(**names) for each in (_CREATE_FUNCTION, _CREATE_TRIGGER)]


def unstamped(connection: psycopg.Connection[Any], outbox: OutboxTable) -> OutboxTableError | None:
    """Return an error if the outbox or a segment has no enabled trigger, so that rows may never be delivered; else
    None."""
    _, owner, without, _ = _state(connection, outbox)
    if not without:
        return None
    return OutboxTableError(
        f"rows that come into {outbox} with a transaction id of their own are never delivered",
        evidence=f"the trigger {TRIGGER} is missing, or disabled, in {_few(without)}: rows of an INSERT … SELECT or "
        "COPY of old rows, and of logical replication, keep ids that the subscriptions have passed",
        next_step=f"`harvest init` as the owner, {owner}; rows that came before are read after `harvest subscriptions "
        "rewind`",
    )


def _few(tables: Sequence[str]) -> str:
    more = len(tables) - _NAMED
    return ", ".join(tables[:_NAMED]) + (f" and {more} segments more" if more > 0 else "")


def add_stamp(
    connection: psycopg.Connection[Any], outbox: OutboxTable, *, patience_seconds: float = PATIENCE_SECONDS
) -> bool | None:
    """Create the trigger on a native table. Return True if it was created, False if it exists already, and None if it
    is missing but this role is not the owner.

    Writers wait only as long as `short_locks` allows. Needs a connection in autocommit.
    """
    placed = outbox.placed(connection)
    is_owner, _, without, was_always = _state(connection, placed)
    if not without or not is_owner:
        return None if without else False

    def change() -> None:
        connection.execute(
            sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(TRIGGER), placed.identifier)
        )
        for statement in stamp_statements(placed):
            connection.execute(statement)
        if was_always:
            for each in _always_statements(connection, placed):
                connection.execute(each.encode())

    with exclusively(connection, placed, patience_seconds):
        with_short_locks(connection, placed, change, patience_seconds=patience_seconds)
    return True


def check_replication(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Raise OutboxTableError if logical replication is writing rows that subscriptions would never deliver."""
    with translated():
        row = connection.execute(_REPLICATED, {"outbox": str(outbox)}).fetchone()
    if row is None:
        return
    name = sql.Identifier(row[0]).as_string(None)
    raise OutboxTableError(
        f"logical replication writes rows into {outbox} that would never be delivered",
        evidence=f"the subscription {row[0]!r} of Postgres writes into {row[1]}; its rows have transaction ids of "
        "another server, which the subscriptions here have passed",
        next_step=f"to continue the harvest of that server here: ALTER SUBSCRIPTION {name} DISABLE, then `harvest "
        "subscriptions move`; to harvest the replicated rows here: `harvest init`, then, as the owner, "
        + "; ".join(_always_statements(connection, outbox)),
    )


def _always_statements(connection: psycopg.Connection[Any], outbox: OutboxTable) -> Sequence[str]:
    """Return the statements that enable the trigger ALWAYS, on the outbox and on all segments: it then fires for
    replicated rows too."""
    with translated():
        tables = connection.execute(_ALWAYS, {"outbox": str(outbox)}).fetchall()
    return [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {TRIGGER}" for (table,) in tables]


def _state(connection: psycopg.Connection[Any], outbox: OutboxTable) -> tuple[bool, str, Sequence[str], bool]:
    with translated():
        row = connection.execute(_STATE, {"outbox": str(outbox), "trigger": TRIGGER}).fetchone()
    return tuple(row) if row is not None else (False, "", [str(outbox)], False)
