"""Rows in the format in which Postgres sent them. Python makes an object for a row only when the row is read singly."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from ctypes import CDLL, Array, byref, c_char, c_int32, c_int64, create_string_buffer
from operator import itemgetter
from typing import Any, overload

import psycopg

from harvest_lib.native.library import Summary, implementation
from harvest_lib.record import ID, KEY, TOPIC, VALUE, Row
from harvest_lib.record.rows import RowPage, RowsSummary
from harvest_lib.telemetry.trace_context import TRACEPARENT_CHARS

_INT8, _TEXT, _VARCHAR, _BYTEA, _TEXTS, _VARCHARS = 20, 25, 1043, 17, 1009, 1015
_TYPES: tuple[Collection[int], ...] = (
    {_INT8},
    *[{_TEXT, _VARCHAR}] * 2,
    {_TEXT, _VARCHAR, _BYTEA},
    *[{_TEXTS, _VARCHARS}] * 2,
)
"""Types (oids) that each column of a `Row` may have here. Python reads rows with other types."""
_BINARY = 1
_UTF_8 = "utf-8"


class NativeRows(RowPage):
    """View of rows of a result, from `start` to before `stop`. With `picked`, a list of row numbers, `start` and `stop`
    are indexes in `picked`. Only the columns of a `Row` count, from the column `first` on. Slices are views of the same
    result too. A `Row` object is made each time that a row is read."""

    __slots__ = ("_cursor", "_library", "_summary", "first", "picked", "start", "stop")

    def __init__(
        self,
        library: CDLL,
        cursor: psycopg.Cursor[Any],
        first: int,
        span: range,
        picked: "Array[c_int32] | None" = None,
    ) -> None:
        self._library, self._cursor = library, cursor
        self._summary: RowsSummary | None = None
        self.first, self.picked, self.start, self.stop = first, picked, span.start, span.stop

    @property
    def result(self) -> int:
        """Return the address of libpq's result, which is valid as long as this object exists."""
        address = _address(self._cursor)
        assert address is not None  # noqa: S101 - `rows_of` has checked; it is not cleared while the cursor has it
        return address

    @property
    def view(self) -> "tuple[int, int, Array[c_int32] | None, int, int]":
        """Return the arguments that describe the rows to the library's functions."""
        return self.result, self.first, self.picked, self.start, self.stop

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> "NativeRows": ...
    def __getitem__(self, place: int | slice) -> "Row | NativeRows":
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                raise ValueError("a view of rows has no steps")
            span = range(self.start + start, self.start + max(start, stop))
            return NativeRows(self._library, self._cursor, self.first, span, self.picked)
        at = range(self.start, self.stop)[place]
        return self._made(at if self.picked is None else self.picked[at], 1)[0]

    def __iter__(self) -> Iterator[Row]:
        if self.picked is not None:
            return (self._made(at, 1)[0] for at in self.picked[self.start : self.stop])
        return iter(self._made(self.start, len(self)) if len(self) else ())

    def _made(self, start: int, count: int) -> list[Row]:
        self._cursor.scroll(start, mode="absolute")
        found = self._cursor.fetchmany(count)
        return _without_others(found, self.first)

    def pick(self, places: Sequence[int]) -> "NativeRows":
        rows = range(self.start, self.stop) if self.picked is None else self.picked[self.start : self.stop]
        picked = (c_int32 * len(places))(*[rows[place] for place in places])
        return NativeRows(self._library, self._cursor, self.first, range(len(places)), picked)

    def pop(self) -> None:
        """Remove the last row from the view."""
        self.stop, self._summary = self.stop - 1, None

    def count_up_to(self, record_id: int) -> int:
        """Return the number of rows with ids up to `record_id`. The ids of the rows must ascend, and `picked` must be
        None."""
        result, read = self.result, self._library.harvest_id
        return bisect_right(range(self.start, self.stop), record_id, key=lambda row: read(result, self.first, row))

    @property
    def ids(self) -> list[int]:
        """Return the ids of all rows."""
        found = (c_int64 * len(self))()
        self._library.harvest_ids(*self.view, found)
        return found[:]

    @property
    def keys(self) -> list[str]:
        return self._texts(self.first)

    @property
    def topics(self) -> list[str]:
        return self._texts(self.first - (KEY - TOPIC))  # the library reads the column KEY, counted from `first`

    def _texts(self, first: int) -> list[str]:
        view = (self.result, first, self.picked, self.start, self.stop)
        found = create_string_buffer(self._library.harvest_keys(*view, None))
        self._library.harvest_keys(*view, found)
        return found.raw.decode().split("\0")[:-1]

    @property
    def has_text(self) -> bool:
        """Return True if the values are text, not bytes."""
        result = self._cursor.pgresult
        assert result is not None  # noqa: S101 - as above
        return result.ftype(self.first + VALUE) != _BYTEA

    @property
    def ascends(self) -> bool:
        """Return True if each row has a higher id than the row before it."""
        return bool(self._library.harvest_ascends(*self.view))

    @property
    def summary(self) -> RowsSummary:
        """Return the summary of all rows."""
        self._summary = self._summary or self._summarize()
        return self._summary

    def _summarize(self) -> RowsSummary:
        found = Summary()
        self._library.harvest_summarize(*self.view, byref(found))
        return RowsSummary(
            bytes=found.bytes,
            largest=found.largest,
            is_plain=bool(found.plain),
            topics=[self.topic_at(found.first_of[number]) for number in range(found.topics)],
        )

    def sampled_traceparents(self, most: int) -> list[str]:
        """Return the same as `sampled_traceparents` in `harvest_lib.record.rows`."""
        found = (c_char * (TRACEPARENT_CHARS * most))()
        count = self._library.harvest_traceparents(*self.view, found, most)
        text = found.raw[: count * TRACEPARENT_CHARS].decode()
        return [text[at : at + TRACEPARENT_CHARS] for at in range(0, len(text), TRACEPARENT_CHARS)]

    def topic_at(self, row: int) -> str:
        """Return the topic of the row with this number in the result."""
        assert self._cursor.pgresult is not None  # noqa: S101 - as above
        return bytes(self._cursor.pgresult.get_value(row, self.first + TOPIC) or b"").decode()


def rows_of(cursor: psycopg.Cursor[Any], first: int = 0) -> list[Row] | NativeRows:
    """Return all rows of a statement. Return native rows if the library is in use and knows the types of the columns,
    else a list. Only the columns of a `Row` are returned. The `first` columns of the result, and any columns after the
    columns of a `Row`, are left out."""
    if not cursor.rowcount:
        return []
    library = implementation().library
    if library is not None and _is_understood(cursor, first):
        return NativeRows(library, cursor, first, range(cursor.rowcount))
    cursor.scroll(0, mode="absolute")
    return _without_others(cursor.fetchall(), first)


def _without_others(found: list[Any], first: int) -> list[Row]:
    last = first + len(_TYPES)
    return found if not found or (first, last) == (0, len(found[0])) else [row[first:last] for row in found]


def by_id(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows in order of their ids."""
    return rows if isinstance(rows, NativeRows) and rows.ascends else sorted(rows, key=itemgetter(ID))


def _is_understood(cursor: psycopg.Cursor[Any], first: int) -> bool:
    result = cursor.pgresult
    if result is None or _address(cursor) is None or result.nfields < first + len(_TYPES):
        return False
    if cursor.connection.info.encoding != _UTF_8 or not 0 < cursor.rowcount <= result.ntuples:
        return False
    columns = enumerate(_TYPES, first)
    return all(result.fformat(number) == _BINARY and result.ftype(number) in types for number, types in columns)


def _address(cursor: psycopg.Cursor[Any]) -> int | None:
    """Return the address of a cursor's result; None if psycopg does not expose the address."""
    found: int | None = getattr(cursor.pgresult, "pgresult_ptr", None)
    return found
