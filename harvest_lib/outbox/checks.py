"""CHECK constraints of the outbox: Postgres refuses a record that Kafka would reject, in the writer's transaction.

Promises
- The constraints never refuse a row that was there before the constraints, even if the row is marked, put back or
  restamped: an UPDATE checks a row again, and the harvester must not fail because of an old row. So on a table in use,
  the constraints apply from the first id that the sequence had not given out when they were added.
- The constraints are always validated: a segment with an unvalidated constraint cannot be attached.
- Writers wait no longer than for any other change of the table: see `short_locks`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated
from harvest_lib.record import TOPIC_MAX_CHARS

TOPIC_IS_LEGAL: LiteralString = f"""
      (kafka_topic COLLATE "C") ~ '^[A-Za-z0-9._-]{{1,{TOPIC_MAX_CHARS}}}$' AND kafka_topic NOT IN ('.', '..')"""
"""SQL condition for a topic that Kafka allows, on a column `kafka_topic`."""

_RULES: Mapping[str, LiteralString] = {
    "harvest_topic_is_legal": TOPIC_IS_LEGAL,
    # Without the CASE, array_position would raise an error for an array of arrays.
    "harvest_headers_are_pairs": """
      cardinality(kafka_header_keys) = cardinality(kafka_header_values)
      AND coalesce(array_ndims(kafka_header_values), 1) = 1
      AND CASE coalesce(array_ndims(kafka_header_keys), 1)
          WHEN 1 THEN array_position(kafka_header_keys, NULL) IS NULL ELSE false END""",
}

_STATE = """
SELECT pg_has_role(c.relowner, 'USAGE'),
       ARRAY(SELECT conname::text FROM pg_constraint WHERE conrelid = c.oid AND conname = ANY (%(names)s)),
       ARRAY(SELECT conname::text FROM pg_constraint
             WHERE conrelid = c.oid AND conname = ANY (%(names)s) AND NOT convalidated)
FROM pg_class AS c WHERE c.oid = to_regclass(%(table)s)
"""

_LOCK = "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"

_NEXT = "SELECT last_value + is_called::int FROM {sequence}"

_HIGHEST = "SELECT coalesce(max(id), 0) + 1 FROM {table}"

_SEQUENCE = "SELECT parse_ident(pg_get_serial_sequence(%s, 'id'))"

_ADD = "ALTER TABLE {table} ADD CONSTRAINT {name} CHECK (id < {first} OR ({rule})) NOT VALID"

_VALIDATE = "ALTER TABLE {table} VALIDATE CONSTRAINT {name}"


def check_clauses() -> sql.Composable:
    """Return the CONSTRAINT clauses for the CREATE TABLE of a new table, each preceded by a comma and a new line."""
    clauses = [
        sql.SQL(",\n  CONSTRAINT {} CHECK ({})").format(sql.Identifier(name), sql.SQL(rule))
        for name, rule in _RULES.items()
    ]
    return sql.Composed(clauses)


def check_statements(outbox: OutboxTable) -> list[sql.Composed]:
    """Return the statements that add the constraints to a table without rows."""
    return [
        sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({})").format(
            outbox.identifier, sql.Identifier(name), sql.SQL(rule)
        )
        for name, rule in _RULES.items()
    ]


def add_checks(
    connection: psycopg.Connection[Any], outbox: OutboxTable, *, patience_seconds: float = PATIENCE_SECONDS
) -> Sequence[str] | None:
    """Add and validate the constraints that a table lacks, and return the names of the added constraints.

    If constraints are missing and this role is not the owner, change nothing and return None. Needs a connection in
    autocommit.
    """
    placed = outbox.placed(connection)
    is_owner, there, _ = _state(connection, placed)
    missing = [name for name in _RULES if name not in there]
    if missing and not is_owner:
        return None
    if missing:
        with exclusively(connection, placed, patience_seconds):
            with_short_locks(
                connection, placed, lambda: _add(connection, placed, missing), patience_seconds=patience_seconds
            )
    if is_owner:
        validate_checks(connection, placed)
    return missing


def validate_checks(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Validate the constraints that an earlier, killed run has left unvalidated. This reads the whole table, but delays
    no other session."""
    for name in _state(connection, outbox)[2]:
        with translated():
            connection.execute(
                sql.SQL(_VALIDATE).format(table=outbox.identifier, name=sql.Identifier(name)),
            )


def _add(connection: psycopg.Connection[Any], outbox: OutboxTable, names: Sequence[str]) -> None:
    connection.execute(sql.SQL(_LOCK).format(table=outbox.identifier))  # from here on no writer is active
    first = _first(connection, outbox)
    for name in names:
        statement = sql.SQL(_ADD).format(
            table=outbox.identifier,
            name=sql.Identifier(name),
            first=sql.Literal(first),
            rule=sql.SQL(_RULES[name]),
        )
        connection.execute(statement)


def _first(connection: psycopg.Connection[Any], outbox: OutboxTable) -> int:
    """Return the lowest id above the ids of all rows and all ids that the sequence has given out."""
    found = [connection.execute(sql.SQL(_HIGHEST).format(table=outbox.identifier)).fetchone()]
    sequence = connection.execute(_SEQUENCE, (str(outbox),)).fetchone()
    if sequence is not None and sequence[0] is not None:
        statement = sql.SQL(_NEXT).format(sequence=sql.Identifier(*sequence[0]))
        found.append(connection.execute(statement).fetchone())
    return max(int(row[0]) for row in found if row is not None)


def _state(connection: psycopg.Connection[Any], outbox: OutboxTable) -> tuple[bool, list[str], list[str]]:
    values = {"names": list(_RULES), "table": str(outbox)}
    with translated():
        row = connection.execute(_STATE, values).fetchone()
    return (row[0], row[1], row[2]) if row is not None else (False, [], [])
