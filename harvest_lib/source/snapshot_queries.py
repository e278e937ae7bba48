"""The statements of `snapshot`. {table}, {id}, {transaction_id}, {columns} and {filter} are filled in by `Selection`.

None finds more than %(bytes)s bytes of records: see `by_bytes`.

The snapshot *prev* did not see exactly these: transactions from its xmax on, and those it lists as in progress. Both
are searched by the index on (transaction_id, id), never from its xmin, or an idle writer would make every poll read all
that was written since it began.
"""

from harvest_lib.source.by_bytes import all_or_none, within
from harvest_lib.source.server_identity import FLUSHED_UP_TO

# One statement, so that its snapshot is the one it reads under. Between those that are in progress now lie the ranges
# of the ended: what an open transaction has written, a million rows perhaps, is stepped over.
_FOUND = """
  (
    SELECT fresh.* FROM (
      SELECT low, coalesce(lead(low) OVER (ORDER BY low), pg_snapshot_xmax(now.snapshot)) AS high
      FROM (
        SELECT %(before)s::xid8 AS low
        UNION ALL
        SELECT open FROM pg_snapshot_xip(now.snapshot) AS open WHERE open > %(before)s::xid8
      ) AS lows
    ) AS range
    CROSS JOIN LATERAL (
      SELECT {columns} FROM {table}
      WHERE {transaction_id} > range.low AND {transaction_id} < range.high {filter}
      ORDER BY {transaction_id}, {id} LIMIT %(limit)s
    ) AS fresh
    LIMIT %(limit)s
  )
  UNION ALL
  (
    SELECT late.* FROM unnest(%(open)s::xid8[]) AS ended (xid)
    CROSS JOIN LATERAL (
      SELECT {columns} FROM {table} WHERE {transaction_id} >= ended.xid AND {transaction_id} <= ended.xid {filter}
      ORDER BY {transaction_id}, {id} LIMIT %(limit)s
    ) AS late
    WHERE pg_visible_in_snapshot(ended.xid, now.snapshot)
    LIMIT %(limit)s
  )
"""

POLL = f"""
SELECT now.snapshot::text, pg_is_in_recovery(), {FLUSHED_UP_TO}, found.*
FROM (SELECT pg_current_snapshot() AS snapshot) AS now
LEFT JOIN LATERAL ({within(_FOUND)}) AS found ON true
"""  # noqa: S608 - it is above

# min({id}) as such would walk the primary key from its beginning, over all that is kept.
EXTENT = """
SELECT min({id} + 0), max({id} + 0) FROM {table}
WHERE {transaction_id} >= %(from)s::xid8 AND {transaction_id} < %(to)s::xid8
  AND pg_visible_in_snapshot({transaction_id}, %(now)s::pg_snapshot)
"""

# By the primary key, whatever the statistics say: the CASE keeps the planner from the other index, which it would have
# to sort again for every page.
_BY_ID = """
SELECT {columns} FROM {table}
WHERE {id} > %(after)s AND {id} <= %(high)s
  AND CASE WHEN {transaction_id} >= %(from)s::xid8
      THEN pg_visible_in_snapshot({transaction_id}, %(now)s::pg_snapshot) ELSE false END {filter}
ORDER BY {id} LIMIT %(limit)s
"""

FRESH_ALL = all_or_none(_BY_ID)

FRESH = within(_BY_ID)

# By (transaction_id, id): an equality would leave the planner the choice of the primary key, along which it would walk
# over everybody else's records.
LATE = within("""
SELECT late.* FROM unnest(%(ended)s::xid8[]) AS ended (xid)
CROSS JOIN LATERAL (
  SELECT {columns} FROM {table}
  WHERE ({transaction_id}, {id}) > (ended.xid, %(after)s) AND {transaction_id} <= ended.xid {filter}
  ORDER BY {transaction_id}, {id} LIMIT %(limit)s
) AS late
ORDER BY 1 LIMIT %(limit)s
""")
