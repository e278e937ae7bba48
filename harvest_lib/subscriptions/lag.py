"""Lag of a subscription: records that it has still to deliver, and the age of the oldest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import translated
from harvest_lib.source import snapshot, transaction_id
from harvest_lib.source.filters import filter_conditions, shard_conditions
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot
from harvest_lib.source.selection import Selection

MOST = 100_000
"""Records that are checked by default; beyond, the number is a lower bound."""

# Both searches use the index on (transaction_id, id). Of a batch that is being read by pages, records up to the page's
# end are delivered; deferred records are not.
_LAG = """
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
SELECT count(*), (SELECT count(*) FROM found) > %(most)s,
       extract(epoch FROM clock_timestamp() - min(create_time) FILTER (WHERE isfinite(create_time)))::float8,
       coalesce(min(id), (SELECT min(id) FROM found))::bigint
FROM waiting
"""

# If all found records are delivered, of a larger batch: the records behind it by id, of which some may be older.
_AHEAD = """
WITH ahead AS (
  SELECT * FROM (SELECT {parts} FROM {table} WHERE {id} > %(done)s ORDER BY {id} LIMIT %(most)s) AS parts
  WHERE NOT pg_visible_in_snapshot(transaction_id, %(delivered)s::pg_snapshot) {filter}
)
SELECT count(*), true,
       extract(epoch FROM clock_timestamp() - min(create_time) FILTER (WHERE isfinite(create_time)))::float8,
       min(id)::bigint
FROM ahead
"""

_AFTER = {
    snapshot.NAME: "{transaction_id} >= %(xmax)s::xid8",
    transaction_id.NAME: "({transaction_id}, {id}) > (%(transaction)s::xid8, %(id)s)",
}
_OUTER: Mapping[str, sql.Composable] = {name: sql.Identifier(name) for name in ("kafka_topic", "kafka_key")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Records that are still to be delivered, and the age of the oldest in seconds; None if nothing waits, or no column
    has a record's time. `is_estimate`: there may be more, and older records. `first_id` is the lowest id that
    waits; if none of the checked ids waits, the lowest checked id."""

    records: int
    is_estimate: bool
    oldest_age_seconds: float | None
    first_id: int | None = None


def lag(
    connection: psycopg.Connection[Any],
    selection: Selection,
    *,
    source: str,
    position: Mapping[str, Any] | None,
    share: tuple[int, int],
    topics: Sequence[str] | None,
    keys: str | None,
    most: int = MOST,
) -> Lag:
    """Return the lag of a position, for a shard's `share` (shard, shards) of the keys, under a filter. Checks `most`
    records at most."""
    after = _AFTER.get(source, _AFTER[snapshot.NAME])
    conditions = [*shard_conditions(*share, _OUTER), *filter_conditions(topics, keys, _OUTER)]
    position = position or {}
    values = values_of(source, position, most)

    def ask(statement: str) -> Lag:
        with translated():
            row = connection.execute(selection.fill(statement, conditions), values).fetchone()
        assert row is not None  # noqa: S101 - an aggregate returns a row
        age = max(0.0, row[2]) if row[2] is not None else None
        return Lag(records=row[0], is_estimate=row[1], oldest_age_seconds=age, first_id=row[3])

    found = ask(_LAG.replace("{after}", after))
    if found.is_estimate and not found.records and "after" in position:
        ahead = ask(_AHEAD)
        return ahead if ahead.records else found
    return found


def values_of(source: str, position: Mapping[str, Any], most: int = MOST) -> dict[str, Any]:
    """Return the values of a position that its lag is counted from. Raises KeyError, ValueError, TypeError or
    AttributeError for an invalid position."""
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
