"""The transaction_id source: it reads records by (transaction_id, id), up to the oldest transaction still open.

Its position is two numbers, so plain SQL can also poll the records and advance the position. The source has two limits.
First, records are in the order in which transactions *began* to write, so concurrent transactions may have committed
the records of a key in another order. Second, a transaction that writes and then idles, in any database of the cluster,
delays all readers.

Promises
- Nothing is skipped: no record can appear any more below the oldest open transaction.
- Returned records are on disk: the source commits a barrier between reading and returning them.
- With an end at a snapshot, the source returns the records written before that snapshot's oldest open transaction, then
  a position with `until`, then nothing.
"""

from collections.abc import Mapping
from typing import Any

from harvest_lib.clock import boot_seconds
from harvest_lib.native import rows_of
from harvest_lib.postgres.database import rendered
from harvest_lib.postgres.translation import translated
from harvest_lib.record import PAGE_BYTES
from harvest_lib.record.checkpoint import Position
from harvest_lib.source import server_identity
from harvest_lib.source.batch_protocol import Page
from harvest_lib.source.batch_source import ConnectedSource, Plans
from harvest_lib.source.by_bytes import take_next, within
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.readable import readable

NAME = "transaction_id"

_FOUND = """
  SELECT {columns}, {transaction_id}::text AS harvest_xid FROM {table}
  WHERE ({transaction_id}, {id}) > (%(transaction)s::xid8, %(id)s) AND {transaction_id} < now.xmin {filter}
  ORDER BY {transaction_id}, {id} LIMIT %(limit)s
"""

_READ = f"""
SELECT now.xmin::text, pg_is_in_recovery(), found.*
FROM (SELECT least(pg_snapshot_xmin(pg_current_snapshot()), %(until)s::xid8) AS xmin) AS now
LEFT JOIN LATERAL ({within(_FOUND, "harvest_xid")}) AS found ON true
"""  # noqa: S608 - constants of this package
_XMIN, _IN_RECOVERY, _FIRST_ID = range(3)
_HIGHEST_ID = 2**63 - 1


class TransactionIdSource(ConnectedSource):
    """`BatchSource` that reads a table in the order of (transaction_id, id)."""

    _transaction = 0
    _id = 0
    _is_over = False  # all records before the filter's `until` were read, and a page with `until` was returned

    def open(self, position: Position | None) -> Position:
        self._defer(position)
        self._is_over = False
        connection = self._reconnect(position)
        if position is None:
            start = self._start if self._start is not None else self._now(connection)
            self._transaction, self._id = start.xmin - 1, _HIGHEST_ID
            self._barrier(connection)
        else:
            self._transaction, self._id = int(position["transaction_id"]), int(position["id"])
            server_identity.check_transactions(connection, self._transaction, self._subscription)
        return self._position() if position is None else position

    def read(self, limit: int) -> Page | None:
        if self._deferred:
            with translated():
                return self._read_deferred(self._position(), limit)
        connection, until, began = self._connected(), self._filter.until, boot_seconds()
        if self._is_over:
            return None
        values = {
            "transaction": str(self._transaction),
            "id": self._id,
            "limit": limit,
            "bytes": PAGE_BYTES,
            "until": str(until.xmin) if until is not None else None,
        }
        with translated():
            self._plan(Plans.KEPT)
            cursor = connection.cursor(binary=True).execute(self._read, values, prepare=True)
            first = cursor.fetchone()
        assert first is not None  # noqa: S101 - a LEFT JOIN of one row has at least one
        if first[_IN_RECOVERY]:
            raise server_identity.standby()
        if first[_FIRST_ID] is None:
            return self._nothing_before(int(first[_XMIN]), began)
        self._barrier(connection)
        rows = rows_of(cursor, _FIRST_ID)
        more = len(rows) == limit
        more = take_next(rows) or more
        cursor.scroll(len(rows) - 1, mode="absolute")
        last = cursor.fetchone()
        assert last is not None  # noqa: S101 - a page has at least one row
        self._transaction, self._id = int(last[-1]), last[_FIRST_ID]
        return Page(readable(rows, connection), self._position(), more=more)

    def _nothing_before(self, xmin: int, began: float) -> Page | None:
        """Handle a poll that found no records before `xmin`. If a checkpoint is justified, move the position to just
        before `xmin` and return a page without records; else return None."""
        until = self._filter.until
        if until is None and not self._should_advance(xmin - 1 - self._transaction, began):
            return None
        self._barrier(self._connected())
        self._transaction, self._id = max((self._transaction, self._id), (xmin - 1, _HIGHEST_ID))
        self._is_over = until is not None
        return Page([], self._position() | ({"until": str(until)} if until is not None else {}), more=False)

    def retention_bounds(self, position: Position) -> tuple[str, int | None]:
        first = max(1, int(position["transaction_id"]) + (position["id"] == _HIGHEST_ID))
        return str(Snapshot(first, first)), min(position.get("deferred", ()), default=None)

    def _prepare(self) -> None:
        self._read = rendered(self._filter.selection.fill(_READ))

    def _position(self) -> dict[str, Any]:
        position: dict[str, Any] = {"source": NAME, "transaction_id": str(self._transaction), "id": self._id}
        return {**position, "server": self._place_json()}


def position_at(at: Snapshot, place: Mapping[str, str]) -> Position:
    """Return the position just before the oldest transaction that the snapshot `at` does not see. `place` is the WAL
    location as JSON."""
    return {"source": NAME, "transaction_id": str(at.xmin - 1), "id": _HIGHEST_ID, "server": place}


def snapshot_of(position: Position) -> Snapshot | None:
    """Return the snapshot that sees exactly the records before a position. Return None if the position is between the
    records of a transaction."""
    if position["id"] != _HIGHEST_ID:
        return None
    following = int(position["transaction_id"]) + 1
    return Snapshot(following, following)
