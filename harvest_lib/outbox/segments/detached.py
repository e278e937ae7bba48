"""Segments that an operator has detached: their records are no longer in the outbox, so they are not delivered.

A table counts as a detached segment if it is in the outbox's schema, has all columns of a native outbox, is not a
partition, and is not being dropped by retention. Its name must begin with the outbox's name and an underscore, or be
listed in `<outbox>_segments`. To keep such a table as an archive, rename it, or move it to another schema.

Records that are not visible in the low watermark of a subscription are certainly not delivered to it. The other records
may not be delivered either: after the segment was detached, the subscription may have passed them without reading them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.outbox.segments.segment_list import Segments
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

MOST = 100_000
"""Maximum number of records to count. A count above it is only a lower bound."""

_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_class AS p
JOIN pg_class AS c ON c.relnamespace = p.relnamespace
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE p.oid = %(outbox)s::regclass AND c.oid <> p.oid AND c.relkind = 'r' AND NOT c.relispartition
  AND (starts_with(c.relname, p.relname || '_') OR EXISTS (SELECT FROM {segments} AS s WHERE s.segment = c.relname))
  AND NOT EXISTS (SELECT FROM {segments} AS s WHERE s.segment = c.relname AND s.leaving)
  AND 8 = (
    SELECT count(*) FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attname = ANY(ARRAY[
      'id', 'kafka_topic', 'kafka_key', 'kafka_value', 'kafka_header_keys', 'kafka_header_values', 'leader_id',
      'transaction_id'])
  )
ORDER BY c.relname
"""

_COUNT = "SELECT count(*), min(id), max(id) FROM (SELECT id FROM {table} LIMIT %(limit)s) AS counted"

_UNSEEN = """
SELECT s.subscription, max(found.records) FROM {subscriptions} AS s CROSS JOIN LATERAL (
  SELECT count(*) AS records FROM (
    SELECT FROM {table} AS t WHERE NOT pg_visible_in_snapshot(t.transaction_id, s.low_watermark) LIMIT %(limit)s
  ) AS counted
) AS found
WHERE s.source <> 'mark' GROUP BY s.subscription ORDER BY s.subscription
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A table that was a segment. `records` is its number of records, None if this role may not read the table.
    `unseen` maps each subscription to its number of records that are certainly not delivered."""

    table: OutboxTable
    records: int | None
    lowest_id: int | None = None
    highest_id: int | None = None
    unseen: Mapping[str, int]
    attach: str = ""
    """The statement that attaches the table again. Empty if another segment has ids of its range."""

    @property
    def name(self) -> str:
        return self.table.parts[-1]

    def __str__(self) -> str:
        if self.records is None:
            return f"{self.name} was detached by hand, and may not be read: its records are not delivered"
        waits = [f"{_number(count)} not delivered to {name!r}" for name, count in self.unseen.items() if count]
        rest = ", ".join(waits) or (
            "not delivered by the process that marks and purges"
            if not self.unseen
            else "none surely undelivered: subscriptions may have passed records since without reading them, see "
            "`harvest audit`"
        )
        remedy = f"; to deliver them: {self.attach}" if self.attach and waits else ""
        return f"{self.name} was detached by hand: {_number(self.records)} records, {rest}{remedy}"


def detached_segments(connection: psycopg.Connection[Any], outbox: OutboxTable) -> Sequence[Detached]:
    """Return the detached segments of a native outbox that have records or cannot be read."""
    placed = outbox.placed(connection)
    if not placed.segments.exists(connection):
        return []
    statement = sql.SQL(_TABLES).format(segments=in_statement(placed.segments.identifier))
    with translated():
        rows = connection.execute(statement, {"outbox": str(placed)}).fetchall()
    found = [_detached(connection, placed, OutboxTable((schema, name))) for schema, name in rows]
    return [each for each in found if each.records != 0]


def _detached(connection: psycopg.Connection[Any], outbox: OutboxTable, table: OutboxTable) -> Detached:
    names = {
        "table": in_statement(table.identifier),
        "subscriptions": in_statement(outbox.subscriptions.identifier),
    }
    limit = {"limit": MOST + 1}
    try:
        with translated():
            row = connection.execute(sql.SQL(_COUNT).format(**names), limit).fetchone()
            unseen = connection.execute(sql.SQL(_UNSEEN).format(**names), limit).fetchall()
    except DatabaseAccessDenied:
        return Detached(table=table, records=None, unseen={})
    records, lowest, highest = row or (0, None, None)
    return Detached(
        table=table,
        records=records,
        lowest_id=lowest,
        highest_id=highest,
        unseen=dict(unseen),
        attach=_attach(connection, outbox, table, lowest, highest),
    )


def _attach(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    table: OutboxTable,
    lowest: int | None,
    highest: int | None,
) -> str:
    """Return the statement that attaches a table in the gap between two segments. Return an empty text if the table has
    no records, or if no gap contains all its ids."""
    if lowest is None or highest is None:
        return ""
    segments = Segments(outbox).read(connection)
    if any(
        (each.lower is None or each.lower <= highest) and (each.upper is None or each.upper > lowest)
        for each in segments
    ):
        return ""
    below = [each.upper for each in segments if each.upper is not None and each.upper <= lowest]
    above = [each.lower for each in segments if each.lower is not None and each.lower > highest]
    start, end = (str(max(below)) if below else "MINVALUE"), (str(min(above)) if above else "MAXVALUE")
    names = str(outbox), str(table)
    return f"ALTER TABLE {names[0]} ATTACH PARTITION {names[1]} FOR VALUES FROM ({start}) TO ({end})"


def _number(count: int) -> str:
    return f"{MOST:,}+" if count > MOST else f"{count:,}"
