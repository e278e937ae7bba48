"""Prefetching: streams of rows by id, the next piece of each on its way while the last is being delivered.

A statement is waited for on a thread of its own, which costs little: what takes Python's time, making rows of the
answer, is done by whoever asks for them.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from itertools import accumulate, chain, takewhile
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.native import NativeRows, rows_of
from harvest_lib.record import ID, PAGE_BYTES, Row, row_bytes
from harvest_lib.source.by_bytes import take_next
from harvest_lib.source.thread import CallThread
from harvest_lib.sql_ascii import as_bytes

_LAST = 2**63 - 1
_id = itemgetter(ID)


class Prefetcher:
    """Statements on one connection, one after the other, waited for on a thread of their own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._thread = CallThread(connection, "harvest-read")

    def execute(
        self, statement: sql.Composed, values: Mapping[str, Any], before: sql.Composed | None = None
    ) -> "Future[psycopg.Cursor[Any]]":
        """Execute a statement, unless the one `before` it, if there is one, finds anything."""

        def execute(connection: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
            if before is not None:
                found = connection.cursor(binary=True).execute(before, values, prepare=True)
                if found.rowcount:
                    return found
            return connection.cursor(binary=True).execute(statement, values, prepare=True)

        return self._thread.ask(execute)

    def close(self) -> None:
        """Wait for what was asked, and end the thread."""
        self._thread.end()


class Stream:
    """The rows of one statement, ascending by id, in pieces. It takes %(after)s, %(limit)s and %(bytes)s
    beside `values`."""

    def __init__(
        self, statement: sql.Composed, values: Mapping[str, Any], after: int, all_at_once: sql.Composed | None = None
    ) -> None:
        self._statement = statement
        self._all_at_once = all_at_once  # is tried first, unless there was no room for all the last time
        self._is_cut = False
        self._values = values
        self._after = after
        self._asked: tuple[Future[psycopg.Cursor[Any]], int] | None = None
        self._rows: Sequence[Row] = []
        self.is_done = False
        """True once the statement has no more than what is here."""

    @property
    def is_empty(self) -> bool:
        return self.is_done and not self._rows

    @property
    def reach(self) -> int:
        """Return the id up to which all rows are here."""
        return _LAST if self.is_done else self._after

    def ask(self, prefetcher: Prefetcher, limit: int) -> None:
        """Ask for the next piece, if there is none here and none was asked for."""
        if self.is_done or self._rows or self._asked is not None:
            return
        values = {**self._values, "after": self._after, "limit": limit, "bytes": PAGE_BYTES}
        self._asked = prefetcher.execute(self._statement, values, None if self._is_cut else self._all_at_once), limit

    def wait(self, timeout_seconds: float) -> bool:
        """Wait so long for the piece that was asked for, and tell whether the server is done with it."""
        return self._asked is None or bool(wait([self._asked[0]], timeout_seconds).done)

    def collect(self) -> None:
        """Wait for the piece that was asked for."""
        if self._asked is not None:
            (answer, limit), self._asked = self._asked, None
            rows = rows_of(answer.result())
            self._is_cut, self._rows = take_next(rows), rows
            if self._rows:
                self._after = self._rows[-1][0]
            self.is_done = not self._is_cut and len(self._rows) < limit

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
        stream.collect()
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
