"""Prefetching: while the caller delivers a piece of a stream of rows, a thread reads the next pieces.

The thread runs the statements, and starts the statement of the next piece by itself. So the server continues to read
while a batch is flushed and committed. The caller's thread decodes the rows.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import accumulate, chain, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from harvest_lib.native import NativeRows, rows_of
from harvest_lib.postgres.sql_ascii import as_bytes
from harvest_lib.record import ID, PAGE_BYTES, Row, row_bytes
from harvest_lib.source.by_bytes import take_next
from harvest_lib.source.thread import CallThread

_LAST = 2**63 - 1
_AHEAD = 4
"""Maximum number of pieces of a stream that are requested and not yet collected, each of up to `PAGE_BYTES`."""
_id = itemgetter(ID)


class Prefetcher:
    """A thread that runs calls on a connection, in the order of their submission."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._thread = CallThread(connection, "harvest-read")

    def submit(self, call: "Callable[[psycopg.Connection[Any]], Piece | None]") -> "Future[Piece | None]":
        """Run `call` with the connection on the thread, after all earlier calls. Return the future of its result."""
        return self._thread.submit(call)

    def close(self) -> None:
        """Wait for all submitted calls, and end the thread."""
        self._thread.end()


class Piece(NamedTuple):
    """The result of a statement. `is_cut`: the last row did not fit into the bytes and must be dropped; it only shows
    that more rows follow. `is_last`: no rows follow."""

    cursor: "psycopg.Cursor[Any]"
    is_cut: bool
    is_last: bool


class Stream:
    """The rows of a statement, ascending by id, in pieces. The statement takes the parameters %(after)s, %(limit)s and
    %(bytes)s, besides the parameters in `values`."""

    def __init__(
        self, statement: sql.SQL, values: Mapping[str, Any], after: int, all_at_once: sql.SQL | None = None
    ) -> None:
        self._statement = statement
        self._all_at_once = all_at_once  # tried first, unless the last piece was cut
        self._values = values
        self._pending: deque[Future[Piece | None]] = deque()
        self._rows: Sequence[Row] = []
        self._after = after
        self.is_done = False
        """True once all rows of the statement were received."""
        self._read_up_to = after  # used by the prefetcher's thread, like the attributes below
        self._is_cut = False
        self._is_over = False
        self._is_held = False

    @property
    def is_empty(self) -> bool:
        return self.is_done and not self._rows

    @property
    def reach(self) -> int:
        """The id up to which all rows of the statement were received."""
        return _LAST if self.is_done else self._after

    def prefetch(self, prefetcher: Prefetcher, limit: int) -> None:
        """Request further pieces, until `_AHEAD` pieces are requested and not yet collected."""
        while not self.is_done and len(self._pending) < _AHEAD:
            self._pending.append(prefetcher.submit(partial(self._read, limit)))

    def collect(self, prefetcher: Prefetcher, limit: int) -> None:
        """Wait for the next piece, if all rows received so far were taken."""
        while not self._rows and not self.is_done:
            self._is_held = False
            self.prefetch(prefetcher, limit)
            piece = self._pending.popleft().result()
            if piece is None:
                continue
            rows = rows_of(piece.cursor)
            if piece.is_cut:
                rows.pop()
            if rows:
                self._after = rows[-1][ID]
            self._rows, self.is_done = rows, piece.is_last

    def end(self, timeout_seconds: float) -> bool:
        """Stop reading. Wait up to `timeout_seconds` for the requested pieces; return True if all have arrived."""
        self._is_over = True
        return not wait(self._pending, timeout_seconds).not_done

    def _read(self, limit: int, connection: psycopg.Connection[Any]) -> Piece | None:
        """Return the next piece, or None at the end of the stream. Also return None while a record above `PAGE_BYTES`
        waits to be taken, so that the record and the next piece are not in memory at once."""
        if self._is_over or self._is_held:
            return None
        cursor = self._found(limit, connection)
        ends = _last_two(cursor)
        self._is_cut = take_next(ends)
        self._is_held = cursor.rowcount - self._is_cut == 1 and row_bytes(ends[0]) > PAGE_BYTES
        if ends:
            self._read_up_to = ends[-1][ID]
        is_last = not self._is_cut and cursor.rowcount < limit
        self._is_over = self._is_over or is_last
        return Piece(cursor, self._is_cut, is_last)

    def _found(self, limit: int, connection: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
        values = {**self._values, "after": self._read_up_to, "limit": limit, "bytes": PAGE_BYTES}
        if self._all_at_once is not None and not self._is_cut:
            found = connection.cursor(binary=True).execute(self._all_at_once, values, prepare=True)
            if found.rowcount:
                return found
        return connection.cursor(binary=True).execute(self._statement, values, prepare=True)

    def take(self, up_to: int) -> Sequence[Row]:
        """Remove the received rows with ids up to `up_to` from the stream, and return them."""
        rows = self._rows
        count = _count_up_to(up_to, rows)
        self._rows = rows[count:]
        return rows if count == len(rows) else rows[:count]

    def give_back(self, above: int, rows: Sequence[Row]) -> None:
        """Put back the rows with ids above `above`, from `rows` that `take` has returned."""
        again = rows[_count_up_to(above, rows) :]
        self._rows = [*again, *self._rows] if self._rows else again


def merged(streams: Sequence[Stream], prefetcher: Prefetcher, limit: int) -> Sequence[Row]:
    """Return the next rows of all streams, ascending by id, up to `limit` rows and `PAGE_BYTES`. The result is empty
    only if all streams are empty.

    Also request the next pieces of the streams, unless a record above `PAGE_BYTES` is in memory.
    """
    for stream in streams:
        stream.prefetch(prefetcher, limit)
    for stream in streams:
        stream.collect(prefetcher, limit)
    reach = min((stream.reach for stream in streams), default=_LAST)
    taken = [(stream, piece) for stream in streams if (piece := stream.take(reach))]
    rows: Sequence[Row] = taken[0][1] if len(taken) == 1 else sorted(chain(*(each for _, each in taken)), key=_id)
    most = limit if len(taken) <= 1 else min(limit, _count_within(rows))
    if len(rows) > most:  # the rows come from several streams, or were read with a higher limit
        rows = rows[:most]
        for stream, piece in taken:
            stream.give_back(rows[-1][0], piece)
    if not (len(rows) == 1 and row_bytes(rows[0]) > PAGE_BYTES):
        for stream in streams:
            stream.prefetch(prefetcher, limit)
    return rows


def _last_two(cursor: "psycopg.Cursor[Any]") -> list[Row]:
    if not cursor.rowcount:
        return []
    cursor.scroll(max(0, cursor.rowcount - 2), mode="absolute")
    return cursor.fetchall()


def _count_up_to(record_id: int, rows: Sequence[Row]) -> int:
    """Return the number of rows, ascending by id, with ids up to `record_id`."""
    return rows.count_up_to(record_id) if isinstance(rows, NativeRows) else bisect_right(rows, record_id, key=_id)


def _count_within(rows: Sequence[Row]) -> int:
    """Return how many rows, counted from the first, fit into `PAGE_BYTES` together; at least 1."""
    sums = accumulate(map(_octets, rows))
    return max(1, sum(1 for _ in takewhile(lambda size: size <= PAGE_BYTES, sums)))


def _octets(row: Row) -> int:
    """Return the size of a record in bytes, nearly as the server counts it."""
    _, _, key, value, names, contents = row
    return sum(map(_text_octets, (key, value, *names, *contents)))


def _text_octets(text: Any) -> int:
    if not text:
        return 0
    if isinstance(text, list):  # an array of arrays, which the type of the column allows
        return sum(map(_text_octets, text))
    return len(text) if isinstance(text, bytes) or text.isascii() else len(as_bytes(text))
