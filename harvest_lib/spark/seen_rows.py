"""Evidence that a server was not restored to an earlier time: the server still has the last rows that a snapshot saw.

A Postgres that was restored to an earlier time assigns the ids of transactions and records a second time. A snapshot
from before the restore counts the rows with repeated ids as seen, so a reader that continues from that snapshot would
skip these rows. At first the end of the server's log, or its newest transaction id, is before the snapshot and reveals
the restore. New writes soon take both past the snapshot. Two signs remain: the last rows that the snapshot saw are
gone, or there are rows that the snapshot should have seen and did not. So the offset of a stream and the state of an
audit include the last rows.

Promises
- `require_seen` passes only if all transactions that had ended in the snapshot have ended on this server, and exactly
  the same last rows are there. The check detects a restore as long as a segment with any of the last rows exists.
- Rows of segments that were dropped since then do not count as missing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import ServerRegressed
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.segments import Segments
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.source.pg_snapshot import Snapshot

SeenRows = Mapping[str, Any]
"""The evidence for a snapshot. `rows` are pairs of id and digest: those of the last rows in the order of (transaction,
id). The rows begin at the pair `from`, and none has an id below `floor`. The mapping can be stored as JSON."""

_ROWS = 16
_LOWEST_ID, _HIGHEST_ID = -(2**63), 2**63 - 1

# Forces the index on (transaction_id, id), whatever the statistics say about a table that grows at its end.
_SETTINGS = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"

# Each range lies between two transactions that were in progress: rows of an open transaction are skipped.
_LAST = """
SELECT found.transaction_id::text, found.id, found.digest FROM (
  SELECT low, coalesce(lead(low) OVER (ORDER BY low), pg_snapshot_xmax(%(seen)s::pg_snapshot)) AS high
  FROM (
    SELECT %(before)s::xid8 AS low
    UNION ALL
    SELECT open FROM pg_snapshot_xip(%(seen)s::pg_snapshot) AS open WHERE open > %(before)s::xid8
  ) AS lows
) AS range
CROSS JOIN LATERAL (
  SELECT id, transaction_id, hashtextextended(concat_ws(
    ' ', transaction_id, extract(epoch FROM create_time), octet_length(kafka_value), kafka_topic, kafka_key
  ) COLLATE "C", 0) AS digest
  FROM {table} WHERE transaction_id > range.low AND transaction_id < range.high AND id >= %(floor)s
  ORDER BY transaction_id DESC, id DESC LIMIT %(limit)s
) AS found
ORDER BY found.transaction_id DESC, found.id DESC LIMIT %(limit)s
"""

_NOW = "SELECT pg_current_snapshot()::text"


def lowest_id(connection: psycopg.Connection[Any], outbox: OutboxTable) -> int:
    """Return the lowest id that has a segment. Raises OutboxTableError or DatabaseError."""
    lower = next((each.lower for each in Segments(outbox).read(connection) if not each.detaching), _HIGHEST_ID)
    return _LOWEST_ID if lower is None else lower


def seen_rows(connection: psycopg.Connection[Any], outbox: OutboxTable, seen: str, floor: int) -> SeenRows:
    """Return the last rows that a snapshot of this server sees, with ids from `floor` on. Raises DatabaseError."""
    rows = _last(connection, outbox, seen, floor=floor, before=0, limit=_ROWS)
    first = rows[-1][:2] if len(rows) == _ROWS else (0, _LOWEST_ID)
    return {"from": list(first), "floor": floor, "rows": [[record_id, digest] for _, record_id, digest in rows]}


def require_seen(
    connection: psycopg.Connection[Any], outbox: OutboxTable, seen: str, rows: SeenRows, floor_now: Callable[[], int]
) -> None:
    """Raise ServerRegressed unless the server has exactly the last rows that a snapshot saw.

    `floor_now` returns the lowest id that has a segment, and is called after the rows were read. Raises DatabaseError.
    """
    first = tuple(rows["from"])
    with translated():
        (row,) = connection.execute(_NOW)
    found = _last(connection, outbox, seen, floor=rows["floor"], before=max(first[0] - 1, 0), limit=_ROWS + 1)
    floor = floor_now()
    there = {(each, digest) for transaction, each, digest in found if (transaction, each) >= first and each >= floor}
    wanted = {(record_id, digest) for record_id, digest in rows["rows"] if record_id >= floor}
    if new := sorted(there - wanted):
        what = f"record {new[0][0]} is there, of a transaction that had ended without it"
    elif gone := sorted(wanted - there):
        what = f"{len(gone)} of the last {len(wanted)} records are gone, record {gone[0][0]} first"
    elif not Snapshot.parse(row[0]).covers(Snapshot.parse(seen)):
        what = f"transactions that had ended at {seen} have not at {row[0]}"
    else:
        return
    raise ServerRegressed(
        "the server was put back to an earlier time, or records were deleted that were read from it",
        evidence=what,
        next_step="compare what was read with the outbox",
    )


def _last(
    connection: psycopg.Connection[Any], outbox: OutboxTable, seen: str, *, floor: int, before: int, limit: int
) -> list[tuple[int, int, int]]:
    """Return transaction, id and digest of the last rows, the last row first."""
    statement = sql.SQL(_LAST).format(table=in_statement(outbox.identifier))
    values = {"seen": seen, "before": str(before), "floor": floor, "limit": limit}
    with translated(), connection.transaction(force_rollback=True):  # the rollback undoes the settings
        connection.execute(_SETTINGS)
        rows = connection.execute(statement, values).fetchall()
    return [(int(transaction), record_id, digest) for transaction, record_id, digest in rows]
