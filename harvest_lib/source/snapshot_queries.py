"""SQL of `snapshot`. `Selection` fills in {table}, {id}, {transaction_id}, {columns} and {filter}.

No statement returns more than %(bytes)s bytes of records: see `by_bytes`.

The snapshot *prev* does not see two groups of transactions: all in its in-progress list, and all from its xmax on.
The statements find the records of both groups by the index on (transaction_id, id). They never search from the xmin of
the snapshot, because with an idle writer every poll would then read all rows written since that writer began.
"""

from harvest_lib.source.by_bytes import all_or_none, within
from harvest_lib.source.server_identity import FLUSHED_UP_TO

# A single statement returns the records and its own snapshot. It searches the ranges of transaction ids between the
# transactions in progress, and so skips the rows of an open transaction, perhaps a million.
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
"""  # noqa: S608 - a constant of this module

# The addition of 0 prevents a walk of the primary key from its beginning, over all retained rows.
EXTENT = """
SELECT min({id} + 0), max({id} + 0) FROM {table}
WHERE {transaction_id} >= %(from)s::xid8 AND {transaction_id} < %(to)s::xid8
  AND pg_visible_in_snapshot({transaction_id}, %(now)s::pg_snapshot)
"""

# The statement uses the primary key, regardless of statistics. The index on (transaction_id, id) would need a sort for
# every page, and because of the CASE the planner cannot use that index.
BY_ID = """
SELECT {columns} FROM {table}
WHERE {id} > %(after)s AND {id} <= %(high)s
  AND CASE WHEN {transaction_id} >= %(from)s::xid8
      THEN pg_visible_in_snapshot({transaction_id}, %(now)s::pg_snapshot) ELSE false END {filter}
ORDER BY {id} LIMIT %(limit)s
"""

FRESH_ALL = all_or_none(BY_ID)

FRESH = within(BY_ID)

# The statement compares (transaction_id, id), because with an equality of transaction_id the planner could choose the
# primary key, and read the records of all other transactions.
LATE_BY_ID = """
SELECT late.* FROM unnest(%(ended)s::xid8[]) AS ended (xid)
CROSS JOIN LATERAL (
  SELECT {columns} FROM {table}
  WHERE ({transaction_id}, {id}) > (ended.xid, %(after)s) AND {transaction_id} <= ended.xid {filter}
  ORDER BY {transaction_id}, {id} LIMIT %(limit)s
) AS late
ORDER BY 1 LIMIT %(limit)s
"""

LATE = within(LATE_BY_ID)

BY_ID_FROM = BY_ID.replace("%(after)s", "%(from_id)s")
"""The statement `BY_ID`, with a parameter of its own for the first id. Late records may have lower ids."""

BOTH_BY_ID = f"""
SELECT * FROM (({BY_ID_FROM}) UNION ALL ({LATE_BY_ID})) AS page
ORDER BY 1 LIMIT %(limit)s
"""  # noqa: S608 - as above
