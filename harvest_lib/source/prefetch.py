"""Prefetching: streams of rows by id, the next pieces of each on their way while the last is being delivered.

A statement is waited for on a thread of its own, which goes on with the next piece by itself, so that the server reads
on while a batch is flushed and committed. The work in Python, making rows of an answer, is done on the caller's thread.
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
from harvest_lib.record import ID, PAGE_BYTES, Row, row_bytes
from harvest_lib.source.by_bytes import take_next
from harvest_lib.source.thread import CallThread
from harvest_lib.sql_ascii import as_bytes

_LAST = 2**63 - 1
_AHEAD = 4
"""Pieces that are asked for at most, each of up to `PAGE_BYTES`."""
_id = itemgetter(ID)


class Prefetcher:
    """Calls with one connection, one after the other, on a thread of their own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._thread = CallThread(connection, "harvest-read")

    def ask(self, call: "Callable[[psycopg.Connection[Any]], Piece | None]") -> "Future[Piece | None]":
        """Have `call` called with the connection, after all calls asked before."""
        return self._thread.ask(call)

    def close(self) -> None:
        """Wait for the calls asked so far, and end the thread."""
        self._thread.end()


class Piece(NamedTuple):
    """The result of a statement. `is_cut`: its last row is only a sign that there are more."""

    cursor: "psycopg.Cursor[Any]"
    is_cut: bool
    is_last: bool


class Stream:
    """The rows of one statement, ascending by id, in pieces. It takes %(after)s, %(limit)s and %(bytes)s
    beside `values`."""

    def __init__(
        self, statement: sql.SQL, values: Mapping[str, Any], after: int, all_at_once: sql.SQL | None = None
    ) -> None:
        self._statement = statement
        self._all_at_once = all_at_once  # is tried first, unless there was no room for all the last time
        self._values = values
        self._asked: deque[Future[Piece | None]] = deque()
        self._rows: Sequence[Row] = []
        self._after = after
        self.is_done = False
        """True once the statement has no more rows than those here."""
        self._read_up_to = after  # from here on: the prefetcher's thread
        self._is_cut = False
        self._is_over = False
        self._is_held = False

    @property
    def is_empty(self) -> bool:
        return self.is_done and not self._rows

    @property
    def reach(self) -> int:
        """Return the id up to which all rows are here."""
        return _LAST if self.is_done else self._after

    def ask(self, prefetcher: Prefetcher, limit: int) -> None:
        """Ask for the next pieces, as many as may be on their way."""
        while not self.is_done and len(self._asked) < _AHEAD:
            self._asked.append(prefetcher.ask(partial(self._read, limit)))

    def collect(self, prefetcher: Prefetcher, limit: int) -> None:
        """Wait for the next piece, if none is here."""
        while not self._rows and not self.is_done:
            self._is_held = False
            self.ask(prefetcher, limit)
            piece = self._asked.popleft().result()
            if piece is None:
                continue
            rows = rows_of(piece.cursor)
            if piece.is_cut:
                rows.pop()
            if rows:
                self._after = rows[-1][ID]
            self._rows, self.is_done = rows, piece.is_last

    def end(self, timeout_seconds: float) -> bool:
        """Read no more; wait so long for pieces on their way, and return True if the server is done with them."""
        self._is_over = True
        return not wait(self._asked, timeout_seconds).not_done

    def _read(self, limit: int, connection: psycopg.Connection[Any]) -> Piece | None:
        """Return the next piece; None if there is none, or if it would be in memory beside a record that is larger by
        far and has not been taken yet."""
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
        """Return the rows that are here with ids up to `up_to`."""
        rows = self._rows
        count = _count_up_to(up_to, rows)
        self._rows = rows[count:]
        return rows if count == len(rows) else rows[:count]

    def give_back(self, above: int, rows: Sequence[Row]) -> None:
        """Have those of the rows that were taken with ids above `above` here again."""
        again = rows[_count_up_to(above, rows) :]
        self._rows = [*again, *self._rows] if self._rows else again


def merged(streams: Sequence[Stream], prefetcher: Prefetcher, limit: int) -> Sequence[Row]:
    """Return the next rows of all streams together, ascending by id, up to `limit` and `PAGE_BYTES`, and ask for what
    follows, unless that would be in memory beside a record that is larger by far.

    Empty only when all streams are.
    """
    for stream in streams:
        stream.ask(prefetcher, limit)
    for stream in streams:
        stream.collect(prefetcher, limit)
    reach = min((stream.reach for stream in streams), default=_LAST)
    taken = [(stream, piece) for stream in streams if (piece := stream.take(reach))]
    rows: Sequence[Row] = taken[0][1] if len(taken) == 1 else sorted(chain(*(each for _, each in taken)), key=_id)
    most = limit if len(taken) <= 1 else min(limit, _count_within(rows))
    if len(rows) > most:  # of several streams, or asked for when the limit was higher
        rows = rows[:most]
        for stream, piece in taken:
            stream.give_back(rows[-1][0], piece)
    if not (len(rows) == 1 and row_bytes(rows[0]) > PAGE_BYTES):
        for stream in streams:
            stream.ask(prefetcher, limit)
    return rows


def _last_two(cursor: "psycopg.Cursor[Any]") -> list[Row]:
    if not cursor.rowcount:
        return []
    cursor.scroll(max(0, cursor.rowcount - 2), mode="absolute")
    return cursor.fetchall()


def _count_up_to(record_id: int, rows: Sequence[Row]) -> int:
    """Return how many of the rows, which ascend by id, have ids up to this one."""
    return rows.count_up_to(record_id) if isinstance(rows, NativeRows) else bisect_right(rows, record_id, key=_id)


def _count_within(rows: Sequence[Row]) -> int:
    """Return how many of the first rows have `PAGE_BYTES` together, at least one."""
    sums = accumulate(map(_octets, rows))
    return max(1, sum(1 for _ in takewhile(lambda size: size <= PAGE_BYTES, sums)))


def _octets(row: Row) -> int:
    """Return the bytes of a record as the server counts them, but for a few."""
    _, _, key, value, names, contents = row
    return sum(map(_text_octets, (key, value, *names, *contents)))


def _text_octets(text: Any) -> int:
    if not text:
        return 0
    if isinstance(text, list):  # an array of arrays, which the type of the column allows
        return sum(map(_text_octets, text))
    return len(text) if isinstance(text, bytes) or text.isascii() else len(as_bytes(text))
