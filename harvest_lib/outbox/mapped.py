"""An outbox of another layout, read through `columns`: the check that it can be read without losing anything."""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.config.columns import ColumnMapping
from harvest_lib.database import translated
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.table import OutboxTable

_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, NULL), a.attnotnull
FROM pg_attribute AS a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""

_INDEXES = """
SELECT (
  SELECT array_agg(a.attname::text ORDER BY k.place)
  FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
  LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number AND k.number > 0
) FROM pg_index AS i WHERE i.indrelid = to_regclass(%s) AND i.indisvalid AND i.indpred IS NULL
"""

_NUMBERS = {"bigint", "integer", "smallint"}


def check_mapped(connection: psycopg.Connection[Any], table: OutboxTable, mapping: ColumnMapping) -> None:
    """Raise OutboxTableError if a column is not there, or records could be lost, repeated or only found by reading all
    of the table; with the DDL that mends it."""
    table.placed(connection)
    with translated():
        found = {name: (kind, strict) for name, kind, strict in connection.execute(_COLUMNS, (str(table),))}
        indexes = [each or [] for (each,) in connection.execute(_INDEXES, (str(table),))]
    record_id, xid = (sql.Identifier(name).as_string(None) for name in (mapping.id, mapping.transaction_id))
    if mapping.transaction_id not in found:
        raise OutboxTableError(
            f"the table {table} does not say which transaction wrote a record",
            evidence=f"there is no column {mapping.transaction_id}",
            next_step=f"ALTER TABLE {table} ADD COLUMN {xid} xid8 NOT NULL DEFAULT pg_current_xact_id(); "
            f"CREATE INDEX CONCURRENTLY ON {table} ({xid}, {record_id})",
        )
    kind, is_strict = found[mapping.transaction_id]
    if kind != "xid8":
        raise _unfit(table, f"{mapping.transaction_id} is {kind}, not xid8", "name a column of type xid8 in `columns`")
    if not is_strict:
        raise _unfit(
            table,
            f"{mapping.transaction_id} may be null, and such a record would never be found",
            f"ALTER TABLE {table} ALTER {xid} SET DEFAULT pg_current_xact_id(), ALTER {xid} SET NOT NULL",
        )
    parts = (mapping.id, mapping.kafka_topic, mapping.kafka_key, mapping.kafka_value, mapping.create_time)
    named = [each for each in (*parts, *mapping.headers.values()) if isinstance(each, str)]
    if missing := [each for each in named if each not in found]:
        raise _unfit(
            table,
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; it has {', '.join(found)}",
            "correct `columns`: what is left out there stands where the native table has it",
        )
    if found[mapping.id][0] not in _NUMBERS:
        raise _unfit(table, f"{mapping.id} is {found[mapping.id][0]}, not a whole number", "name another as `id`")
    if not any(each[:1] == [mapping.id] for each in indexes):
        raise _unfit(table, f"no index begins with {mapping.id}", f"CREATE UNIQUE INDEX ON {table} ({record_id})")
    if not any(each[:2] == [mapping.transaction_id, mapping.id] for each in indexes):
        raise _unfit(
            table,
            f"there is no index on ({mapping.transaction_id}, {mapping.id}): each look would read all of it",
            f"CREATE INDEX CONCURRENTLY ON {table} ({xid}, {record_id})",
        )
    table.check_sequence(connection, mapping.id)


def _unfit(table: OutboxTable, evidence: str, remedy: str) -> OutboxTableError:
    return OutboxTableError(f"the table {table} cannot be read as `columns` says", evidence=evidence, next_step=remedy)
