"""Check of an outbox with another layout, read through `columns`: no record may be lost or delivered twice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.config.columns import ColumnMapping
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, NULL), a.attnotnull,
       format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, NULL)
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""

_INDEXES = """
SELECT (
  SELECT array_agg(a.attname::text ORDER BY k.place)
  FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
  LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number AND k.number > 0
) FROM pg_index AS i WHERE i.indrelid = to_regclass(%s) AND i.indisvalid AND i.indpred IS NULL
"""

_MOMENT = "timestamp with time zone"
_NUMBERS = {"bigint", "integer", "smallint"}


@dataclass(frozen=True, slots=True)
class _Problem:
    evidence: str
    remedy: str


def check_column_mapping(connection: psycopg.Connection[Any], table: OutboxTable, mapping: ColumnMapping) -> None:
    """Raise OutboxTableError if a column is missing, if records could be lost or repeated, or if records could be found
    only by reading the whole table. The error names all problems, and the DDL statements in the order to run them."""
    table.placed(connection)
    with translated():
        columns = connection.execute(_COLUMNS, (str(table),)).fetchall()
        indexes = [each or [] for (each,) in connection.execute(_INDEXES, (str(table),))]
    found = {name: (kind, strict) for name, kind, strict, _ in columns}
    problems = [
        *_named(found, mapping),
        *_created(table, {name: kind for name, *_, kind in columns}, mapping),
        *_transaction_id(table, found, mapping),
        *_indexed(table, found, indexes, mapping),
    ]
    if mapping.id in found:
        try:
            table.check_sequence(connection, mapping.id)
        except OutboxTableError as error:
            problems.append(_Problem(error.evidence, error.next_step))
    if problems:
        raise OutboxTableError(
            f"the table {table} cannot be read as configured by `columns`",
            evidence="; ".join(each.evidence for each in problems),
            next_step="; ".join(each.remedy for each in problems),
        )


def _named(found: Mapping[str, tuple[str, bool]], mapping: ColumnMapping) -> Iterator[_Problem]:
    """Yield the problems that only another configuration can fix."""
    parts = (mapping.id, mapping.kafka_topic, mapping.kafka_key, mapping.kafka_value, mapping.create_time)
    named = [each for each in (*parts, *mapping.headers.values()) if isinstance(each, str)]
    if missing := [each for each in dict.fromkeys(named) if each not in found]:
        yield _Problem(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; it has {', '.join(found)}",
            "correct `columns`: parts that it omits have the native table's columns",
        )
    if mapping.id in found and found[mapping.id][0] not in _NUMBERS:
        yield _Problem(f"{mapping.id} is {found[mapping.id][0]}, not a whole number", "name another as `id`")
    kind = found.get(mapping.transaction_id, ("xid8", True))[0]
    if kind != "xid8":
        yield _Problem(f"{mapping.transaction_id} is {kind}, not xid8", "name a column of type xid8 in `columns`")


def _created(table: OutboxTable, kinds: Mapping[str, str], mapping: ColumnMapping) -> Iterator[_Problem]:
    """Yield a problem if `create_time` is not a timestamptz: other types are local times or no times, and do not show
    the age of a record."""
    name = mapping.create_time
    if name is None or name not in kinds or kinds[name] == _MOMENT:
        return
    column, remedy = sql.Identifier(name).as_string(None), "leave `create_time` out of `columns`: ages are then unknown"
    if kinds[name].startswith("timestamp"):
        remedy += f"; or, if its times are in UTC: ALTER TABLE {table} ALTER {column} TYPE timestamptz"
        remedy += f" USING {column} AT TIME ZONE 'UTC'"
    yield _Problem(f"{name} is {kinds[name]}, not {_MOMENT}: the age of a record is not known", remedy)


def _transaction_id(
    table: OutboxTable, found: Mapping[str, tuple[str, bool]], mapping: ColumnMapping
) -> Iterator[_Problem]:
    xid = sql.Identifier(mapping.transaction_id).as_string(None)
    if mapping.transaction_id not in found:
        yield _Problem(
            f"there is no column {mapping.transaction_id} for the transaction that wrote a record",
            f"ALTER TABLE {table} ADD COLUMN {xid} xid8 NOT NULL DEFAULT pg_current_xact_id()",
        )
    elif found[mapping.transaction_id] == ("xid8", False):
        yield _Problem(
            f"{mapping.transaction_id} may be null, and such a record would never be found",
            f"ALTER TABLE {table} ALTER {xid} SET DEFAULT pg_current_xact_id(), ALTER {xid} SET NOT NULL",
        )


def _indexed(
    table: OutboxTable, found: Mapping[str, tuple[str, bool]], indexes: Sequence[Sequence[str]], mapping: ColumnMapping
) -> Iterator[_Problem]:
    if mapping.id not in found:
        return
    record_id, xid = (sql.Identifier(name).as_string(None) for name in (mapping.id, mapping.transaction_id))
    if not any(each[:1] == [mapping.id] for each in indexes):
        yield _Problem(f"no index begins with {mapping.id}", f"CREATE UNIQUE INDEX ON {table} ({record_id})")
    is_fit = found.get(mapping.transaction_id, ("xid8", True))[0] == "xid8"
    if is_fit and not any(each[:2] == [mapping.transaction_id, mapping.id] for each in indexes):
        yield _Problem(
            f"there is no index on ({mapping.transaction_id}, {mapping.id}): each poll would read all of it",
            f"CREATE INDEX CONCURRENTLY ON {table} ({xid}, {record_id})",
        )
