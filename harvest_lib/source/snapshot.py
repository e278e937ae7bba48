"""The snapshot source: it reads the records that became visible between two snapshots, by id. It writes nothing.

    prev ──────────── a window: visible in cur, not in prev ─────────► cur, which is the next prev
                      page, page, page … each by id

Promises
- Nothing is skipped: a committed record becomes visible between two snapshots, however long its transaction was open
  and whatever its id.
- The records of a key are returned in the order of their commits, if writers lock the key before they insert. Within a
  window the order is by id, and all records of a window are returned before the records of the next window.
- A long or idle transaction delays only its own records.
- The source keeps no transaction open: the position contains both snapshots as text. So a window of any size can be
  read page by page, also by a later leader.
- Returned records are on disk: after it takes a snapshot, the source commits a barrier, unless the server reports that
  all WAL written so far is flushed. A poll that finds no records usually commits no barrier, and leaves the position
  unchanged. If the poll moved the position without a barrier, a crash could undo a transaction that the snapshot shows
  as ended, and the transaction's id would be reused. With a filter, such polls sometimes commit a barrier and move the
  position.
- With an end at a snapshot, the source returns exactly the records in that snapshot, then a position with `until`, then
  nothing.

While the caller delivers a page, the source reads the next pages.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from harvest_lib.clock import boot_seconds
from harvest_lib.native import by_id, rows_of
from harvest_lib.postgres.database import rendered
from harvest_lib.postgres.translation import translated
from harvest_lib.record import PAGE_BYTES
from harvest_lib.record.checkpoint import Position
from harvest_lib.source import server_identity
from harvest_lib.source import snapshot_queries as queries
from harvest_lib.source.batch_protocol import Page
from harvest_lib.source.batch_source import ConnectedSource, Plans
from harvest_lib.source.by_bytes import take_next
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot
from harvest_lib.source.prefetch import Stream, merged
from harvest_lib.source.readable import readable

NAME = "snapshot"

_BEFORE_ALL_IDS, _HIGHEST_ID = -(2**63), 2**63 - 1
_SNAPSHOT, _IN_RECOVERY, _FLUSHED_UP_TO, _FIRST_ID = range(4)
_PATIENCE_SECONDS = 0.1
_CANCEL_SECONDS = 5.0


class SnapshotSource(ConnectedSource):
    """`BatchSource` that reads a table with `transaction_id` from snapshot to snapshot."""

    _prev = NOTHING
    _cur: Snapshot | None = None  # set while a window is being read by pages
    _after: int | None = None  # id of the last record read in the window
    _streams: Sequence[Stream] = ()
    _is_over = False  # all records in the filter's `until` were read, and a page with `until` was returned

    def open(self, position: Position | None) -> Position:
        self._end_window()
        self._is_over = False
        self._defer(position)
        connection = self._reconnect(position)
        if position is None:
            self._prev = self._start if self._start is not None else self._now(connection)
            self._barrier(connection)
        else:
            self._resume(connection, position)
        return self._position(None) if position is None else position

    def read(self, limit: int) -> Page | None:
        with translated():
            if self._deferred:
                return self._read_deferred(self._position(self._after), limit)
            if self._cur is not None:
                return self._page(limit)
            until = self._filter.until
            return self._next_window(limit) if until is None else self._last_window(until, limit)

    def retention_bounds(self, position: Position) -> tuple[str, int | None]:
        return position["prev"], min(position.get("deferred", ()), default=None)

    def close(self) -> None:
        self._end_window()
        super().close()

    # -- windows

    def _next_window(self, limit: int) -> Page | None:
        connection, began = self._connected(), boot_seconds()
        values = {
            "before": str(self._prev.xmax - 1),
            "open": [str(each) for each in self._prev.in_progress],
            "limit": limit + 1,
            "bytes": PAGE_BYTES,
        }
        self._plan(Plans.KEPT)
        cursor = connection.cursor(binary=True).execute(self._poll, values, prepare=True)
        first = cursor.fetchone()
        assert first is not None  # noqa: S101 - a LEFT JOIN of one row has at least one
        if first[_IN_RECOVERY]:
            raise server_identity.standby()
        cur = Snapshot.parse(first[_SNAPSHOT])
        is_empty = first[_FIRST_ID] is None
        if is_empty and not self._should_advance(cur.xmax - self._prev.xmax, began):
            return None
        found = [] if is_empty else rows_of(cursor, _FIRST_ID)
        self._barrier(connection, first[_FLUSHED_UP_TO])
        if len(found) > limit or take_next(found):
            del found, cursor  # the rows are read again, by pages
            self._begin_window(cur, _BEFORE_ALL_IDS)
            return self._page(limit)
        self._prev = cur
        return Page(readable(by_id(found), connection), self._position(None), more=False)

    def _last_window(self, until: Snapshot, limit: int) -> Page | None:
        """Read the records in the snapshot `until`, and no others. A position already after `until` does not change."""
        if self._is_over:
            return None
        if not self._prev.covers(until):
            server_identity.require_primary(self._connected())
            self._barrier(self._connected())
            self._begin_window(until, _BEFORE_ALL_IDS)
            return self._page(limit)
        self._is_over = True
        return Page([], {**self._position(None), "until": str(until)}, more=False)

    def _begin_window(self, cur: Snapshot, after: int) -> None:
        """Begin to read the window up to the snapshot `cur` by pages. The first page begins after the id `after`."""
        self._plan(Plans.FRESH)
        streams, (low, values) = [], self._bounds(cur)
        if max(after, low - 1) < values["high"]:
            streams.append(Stream(self._fresh, values, max(after, low - 1), self._fresh_all))
        if ended := [str(each) for each in self._prev.late(cur)]:
            streams.append(Stream(self._late, {"ended": ended}, after))
        self._cur, self._after, self._streams = cur, after, streams

    def _bounds(self, cur: Snapshot) -> tuple[int, dict[str, Any]]:
        """Return the lowest id of the window up to `cur`, and the parameters of its statements. Records of transactions
        that were in progress at the window's beginning may have lower ids, and are read by a statement of their own."""
        low, high = _BEFORE_ALL_IDS + 1, _HIGHEST_ID
        seen = {"from": str(self._prev.xmax), "now": str(cur)}
        if self._prev != NOTHING:  # from NOTHING the window is the whole table
            row = self._connected().execute(self._extent, {**seen, "to": str(cur.xmax)}, prepare=True).fetchone()
            low, high = row if row is not None and row[0] is not None else (1, 0)
        return low, {**seen, "high": high}

    def _page(self, limit: int) -> Page:
        assert self._cur is not None  # noqa: S101 - there is a window
        assert self._prefetcher is not None  # noqa: S101 - made with the connection
        rows = readable(merged(self._streams, self._prefetcher, limit), self._connected())
        if any(not stream.is_empty for stream in self._streams):
            self._after = rows[-1][0]
            return Page(rows, self._position(self._after), more=True)
        self._prev = self._cur
        self._end_window()
        return Page(rows, self._position(None), more=True)

    def _end_window(self) -> None:
        """End the window: cancel its statements and wait for them. If the server is frozen but still acknowledges TCP,
        the wait lasts until the server answers, and this process cannot lead the shard again before that. A stop of the
        process does not wait for the server."""
        streams, self._streams = self._streams, ()
        self._cur = self._after = None
        while self._connection is not None and not all(stream.end(_PATIENCE_SECONDS) for stream in streams):
            with suppress(psycopg.Error):  # the loop cancels again: a first cancel may come before the statement
                self._connection.cancel_safe(timeout=_CANCEL_SECONDS)

    # -- positions

    def _resume(self, connection: psycopg.Connection[Any], position: Position) -> None:
        self._prev = Snapshot.parse(position["prev"])
        cur = Snapshot.parse(position["cur"]) if "cur" in position else None
        server_identity.check_transactions(connection, (cur or self._prev).xmax, self._subscription)
        if cur is not None:
            with translated():
                self._begin_window(cur, position["after"])

    def _position(self, after: int | None) -> Position:
        position: dict[str, Any] = {"source": NAME, "prev": str(self._prev), "server": self._place_json()}
        if after is not None:
            position |= {"cur": str(self._cur), "after": after}
        return position

    def _prepare(self) -> None:
        named = queries.POLL, queries.EXTENT, queries.FRESH, queries.FRESH_ALL, queries.LATE
        self._poll, self._extent, self._fresh, self._fresh_all, self._late = (
            rendered(self._filter.selection.fill(each)) for each in named
        )


def position_at(at: Snapshot, place: Mapping[str, str]) -> Position:
    """Return the position after all records in the snapshot `at`. `place` is the WAL location as JSON."""
    return {"source": NAME, "prev": str(at), "server": place}
