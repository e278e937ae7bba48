"""The backlog of an outbox: the number of undelivered records, and the age of the oldest record.

All reports use this module.

Promises
- Up to `most` records, the number is exact. Above `most`, it is an estimate from ids, and is marked as an estimate.
- No statement scans the outbox: each reads a bounded number of rows, in index order.
- Ages are measured by the database's clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.postgres.translation import translated
from harvest_lib.source import snapshot, transaction_id
from harvest_lib.source.filters import filter_conditions, shard_conditions
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot
from harvest_lib.source.selection import Selection

MOST = 100_000
"""Default for the maximum number of records to check."""

_NUMBERS = """
count(*), extract(epoch FROM clock_timestamp() - min(create_time) FILTER (WHERE isfinite(create_time)))::float8
"""

# The first two searches use the index on (transaction_id, id). If a window (`batch`) is being read by pages, its
# records up to the id `done` are delivered, except deferred records.
_BEHIND = """
WITH found AS (
  SELECT * FROM (
    (SELECT {parts}, false AS deferred FROM {table} WHERE {after} ORDER BY {transaction_id}, {id} LIMIT %(limit)s)
    UNION ALL
    (SELECT {parts}, false FROM {table} WHERE {transaction_id} = ANY (%(open)s::xid8[]) LIMIT %(limit)s)
    UNION ALL
    (SELECT {parts}, true FROM {table} WHERE {id} = ANY (%(deferred)s::bigint[]))
  ) AS parts
), waiting AS (
  SELECT id, create_time FROM found
  WHERE (deferred OR NOT (id <= %(done)s AND pg_visible_in_snapshot(transaction_id, %(batch)s::pg_snapshot))) {filter}
)
SELECT {numbers}, coalesce(min(id), (SELECT min(id) FROM found))::bigint, (SELECT count(*) FROM found) > %(most)s, 0
FROM waiting
"""

# This statement runs if a window is being read by pages, and all records that _BEHIND has found are delivered. It finds
# the records after the id `done`, but not all older undelivered records.
_AHEAD = """
WITH ahead AS (
  SELECT * FROM (SELECT {parts} FROM {table} WHERE {id} > %(done)s ORDER BY {id} LIMIT %(most)s) AS parts
  WHERE NOT pg_visible_in_snapshot(transaction_id, %(delivered)s::pg_snapshot) {filter}
)
SELECT {numbers}, min(id)::bigint, true, 0 FROM ahead
"""

# This statement runs if all checked records are delivered. It finds the first record that may be undelivered.
_NEXT = """
SELECT {numbers}, min(id)::bigint, true, 0
FROM (SELECT {parts} FROM {table} WHERE {id} >= %(next)s ORDER BY {id} LIMIT 1) AS next
"""

# Finds the first rows by the primary key. Delivered rows are purged, so all rows in the table are undelivered.
_HEAD = """
SELECT {numbers}, min(id)::bigint, count(*) > %(most)s, count(leader_id)
FROM (SELECT {id} AS id, {create_time} AS create_time, leader_id FROM {table} ORDER BY {id} LIMIT %(limit)s) AS head
"""

_LAST_ID = "SELECT max({id})::bigint FROM {table}"

_AFTER = {
    snapshot.NAME: "{transaction_id} >= %(xmax)s::xid8",
    transaction_id.NAME: "({transaction_id}, {id}) > (%(transaction)s::xid8, %(id)s)",
}
_OUTER: Mapping[str, sql.Composable] = {name: sql.Identifier(name) for name in ("kafka_topic", "kafka_key")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The committed, undelivered records: their number, and the age of the oldest record in seconds. The age is None if
    there is no record, or if the table has no column for the time of creation.

    `is_estimate`: the number is an estimate, and there may be older records. `counted`: the number of records that are
    certainly undelivered. `first_id`: the lowest id that is, or may be, undelivered. `marked`: the number of counted
    records that are marked. `epoch`: the leader's epoch; None if the source is `mark`, whose terms have no epoch."""

    records: int
    oldest_age_seconds: float | None = None
    is_estimate: bool = False
    counted: int = 0
    first_id: int | None = None
    marked: int = 0
    epoch: int | None = None

    @property
    def age_seconds(self) -> float:
        """The age of the oldest record in seconds; 0 if it is unknown or there is no record."""
        return self.oldest_age_seconds or 0.0

    @property
    def is_empty(self) -> bool:
        """True if the backlog is certainly empty."""
        return not self.records and not self.is_estimate

    def __str__(self) -> str:
        return f"{'about ' if self.is_estimate else ''}{self.records:,} records"


def backlog_of_table(connection: psycopg.Connection[Any], selection: Selection, most: int = MOST) -> Backlog:
    """Return the backlog of a table from which delivered rows are purged. Reads at most `most` + 1 rows."""
    found = _read(connection, selection, _HEAD, {"most": most, "limit": most + 1})
    return _estimated(connection, selection, found)


def backlog_behind(
    connection: psycopg.Connection[Any],
    selection: Selection,
    *,
    source: str,
    position: Mapping[str, Any] | None,
    share: tuple[int, int],
    topics: Sequence[str] | None,
    keys: str | None,
    most: int = MOST,
) -> Backlog:
    """Return the backlog of a shard: the records after its position that pass its filter. `share` is (number of the
    shard, number of shards). Checks about `most` records, or about twice `most` if a window is being read by pages."""
    conditions = [*shard_conditions(*share, _OUTER), *filter_conditions(topics, keys, _OUTER)]
    position = position or {}
    values = values_of(source, position, most)
    behind = _BEHIND.replace("{after}", _AFTER.get(source, _AFTER[snapshot.NAME]))
    found = _read(connection, selection, behind, values, conditions)
    if found.is_estimate and not found.counted and "after" in position:
        ahead = _read(connection, selection, _AHEAD, values, conditions)
        found = ahead if ahead.counted else found
    if found.is_estimate and not found.counted:
        values["next"] = max(values["done"] + 1, found.first_id or 0)
        found = replace(_read(connection, selection, _NEXT, values), counted=0)
    return _estimated(connection, selection, found, share[1])


def total(parts: Sequence[Backlog]) -> Backlog:
    """Return the backlog of a subscription: the sum of the backlogs of its shards."""
    return Backlog(
        records=sum(each.records for each in parts),
        oldest_age_seconds=max(
            (each.age_seconds for each in parts if each.oldest_age_seconds is not None), default=None
        ),
        is_estimate=any(each.is_estimate for each in parts),
        counted=sum(each.counted for each in parts),
    )


def _read(
    connection: psycopg.Connection[Any],
    selection: Selection,
    statement: str,
    values: Mapping[str, Any],
    conditions: Sequence[sql.Composable] = (),
) -> Backlog:
    with translated():
        query = selection.fill(statement.replace("{numbers}", _NUMBERS), conditions)
        (row,) = connection.execute(query, values)
    count, age, first, is_estimate, marked = row
    return Backlog(
        records=count,
        oldest_age_seconds=max(0.0, age) if age is not None else None,
        is_estimate=is_estimate,
        counted=count,
        first_id=first,
        marked=marked,
    )


def _estimated(connection: psycopg.Connection[Any], selection: Selection, found: Backlog, shards: int = 1) -> Backlog:
    """If the number in a backlog is an estimate, compute it from the first undelivered id and the last committed id."""
    if not found.is_estimate:
        return found
    with translated():
        row = connection.execute(selection.fill(_LAST_ID)).fetchone()
    last = row[0] if row is not None else None
    ids = last - found.first_id + 1 if last is not None and found.first_id is not None else 0
    return replace(found, records=max(found.counted, ids // shards))


def values_of(source: str, position: Mapping[str, Any], most: int = MOST) -> dict[str, Any]:
    """Return the parameters of the statements that count the backlog after a position. Raises KeyError, ValueError,
    TypeError or AttributeError for an invalid position."""
    prev = Snapshot.parse(position["prev"]) if "prev" in position else NOTHING
    return {
        "xmax": str(prev.xmax),
        "open": [str(each) for each in prev.in_progress],
        "transaction": position.get("transaction_id", "0"),
        "id": position.get("id", 0) if source == transaction_id.NAME else 0,
        "deferred": list(position.get("deferred", ())),
        "done": position.get("after", -(2**63)),
        "batch": position.get("cur", str(NOTHING)),
        "delivered": position.get("prev", str(NOTHING)),
        "limit": most + 1,
        "most": most,
    }
