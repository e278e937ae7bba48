"""A window between two snapshots, read in pages of packed rows, for readers that take columns instead of rows.

Postgres packs the rows of a page into a single value, so that the client makes no object for a row or a field. No
transaction stays open while the caller works on a page. A thread reads the next page meanwhile.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from harvest_lib.outbox.record_pages import ARRAY_BYTES
from harvest_lib.postgres.database import rendered
from harvest_lib.postgres.translation import translated
from harvest_lib.record import PAGE_BYTES
from harvest_lib.source import snapshot_queries as queries
from harvest_lib.source.batch_source import Plans
from harvest_lib.source.by_bytes import FITS, SUMMED
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.selection import Selection
from harvest_lib.source.snapshot import SnapshotSource

_FIRST_ROWS, _MOST_ROWS, _GROUP_ROWS = 1_000, 50_000, 256
_PATIENCE_SECONDS, _CANCEL_SECONDS = 0.1, 5.0
_FILLED = 0.9
"""The part of `PAGE_BYTES` that the rows of a page are expected to fill."""
_TEXTS = ("kafka_topic", "kafka_key", "kafka_value")
_ARRAYS = ("kafka_header_keys", "kafka_header_values")

_EXTENT = "SELECT count(*), coalesce(sum(<size>), 0)::bigint, min(page.id), max(page.id) FROM (<found>) AS page"
# OFFSET 0 has each row packed once, although it is used twice. Groups keep the values small: to send a value of
# megabytes costs Postgres more than to pack its rows.
_PAGE = """
SELECT max(page.id), count(*), string_agg(page.packed, ''::bytea),
  string_agg(int4send(octet_length(page.packed)), ''::bytea)
FROM (SELECT page.id, <packed> AS packed FROM (<found>) AS page OFFSET 0) AS page
GROUP BY page.id / %(width)s
"""
_WITHIN = f"SELECT * FROM ({SUMMED.format(size='<size>', found='<found>')}) AS page WHERE {FITS}"  # noqa: S608 - constants
_ARRAY_BYTES = f"({ARRAY_BYTES} + 4 * coalesce(cardinality({{array}}), 0))"  # each element has its length
_COPIED = "SELECT <packed> FROM (<found>) AS page"
_COPY_HEADER_BYTES, _ROW_HEADER_BYTES, _TRAILER_BYTES = 19, 6, 2


class PackedRows(NamedTuple):
    """Rows, as `record_send` packs each: the number of columns, then of each column its type, its length (-1 for NULL)
    and its bytes in Postgres' binary format. `lengths` has the length of each row. All numbers are signed integers of 4
    bytes, big-endian."""

    data: bytes
    lengths: bytes

    def __bool__(self) -> bool:
        return bool(self.lengths)


class _Page(NamedTuple):
    rows: PackedRows
    row_count: int
    last: int
    """The highest id in the page."""
    is_last: bool
    """True if no rows follow."""


class PackedWindow(SnapshotSource):
    """A source whose position is within a window: see `SnapshotSource`. It returns packed rows."""

    _low = 0
    _values: Mapping[str, Any] = {}

    def _begin_window(self, cur: Snapshot, after: int) -> None:
        self._plan(Plans.FRESH)
        self._low, self._values = self._bounds(cur)
        self._cur, self._after = cur, after

    def pages(self, columns: Sequence[str]) -> Iterator[PackedRows]:
        """Yield the rows after the position of `open`, up to the end of the window, ascending by id.

        `columns` are names of columns of the selection. The first must be `id`. A page has up to `PAGE_BYTES`, or a
        single larger row. Raises errors of `harvest_lib.errors`.
        """
        assert self._cur is not None  # noqa: S101 - `open` has begun the window
        assert self._after is not None  # noqa: S101 - as above
        ended = [str(each) for each in self._prev.late(self._cur)]
        values = {**self._values, "ended": ended, "bytes": PAGE_BYTES}
        read = _Reads(self._connected(), self._filter.selection, columns, values, self._low)
        after, limit = self._after, _MOST_ROWS
        with ThreadPoolExecutor(1, "harvest-read") as pool:
            coming = pool.submit(read.first_page, after)
            try:
                while True:
                    rows, count, after, is_last = coming.result()
                    size = len(rows.data)
                    limit = max(1, min(_MOST_ROWS, int(_FILLED * PAGE_BYTES * count / max(size, 1))))
                    is_large = size > 2 * PAGE_BYTES
                    if not is_last and not is_large:
                        coming = pool.submit(read.page, after, limit)
                    if count:
                        yield rows
                    del rows
                    if is_last:
                        return
                    if is_large:  # so that two such rows are never in memory at once
                        coming = pool.submit(read.page, after, limit)
            finally:  # a caller that needs no further page does not wait for the next one
                while wait([coming], _PATIENCE_SECONDS).not_done:
                    with suppress(psycopg.Error):
                        self._connected().cancel_safe(timeout=_CANCEL_SECONDS)


class _Reads:
    """The statements of a window. `low` is the lowest id of the rows that no transaction in `ended` wrote."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        selection: Selection,
        columns: Sequence[str],
        values: Mapping[str, Any],
        low: int,
    ) -> None:
        found = queries.BOTH_BY_ID if values["ended"] else queries.BY_ID_FROM
        texts = _EXTENT, _PAGE, _PAGE.replace("<found>", _WITHIN)
        self._extent, self._all, self._some = (
            rendered(_filled(selection, text.replace("<found>", found), columns)) for text in texts
        )
        self._connection, self._values, self._low = connection, values, low

    def first_page(self, after: int) -> _Page:
        """Return the first page after an id, read by a single statement: a filter may leave few of many rows, which are
        then not searched twice."""
        values = self._values_after(after, _FIRST_ROWS)
        page = self._read(self._some, {**values, "width": _GROUP_ROWS})
        return page or _Page(PackedRows(b"", b""), 0, after, is_last=True)

    def page(self, after: int, limit: int) -> _Page:
        """Return the next page of up to `limit` rows after an id."""
        values = self._values_after(after, limit)
        with translated():
            count, size, first, last = self._execute(self._extent, values).fetchone() or (0, 0, 0, 0)
        fits = size <= PAGE_BYTES
        values |= {"limit": count, "width": max(1, _GROUP_ROWS * (last - first + 1) // count) if count else 1}
        page = self._read(self._all if fits else self._some, values, is_last=fits and count < limit) if count else None
        return page or _Page(PackedRows(b"", b""), 0, after, is_last=True)

    def _values_after(self, after: int, limit: int) -> dict[str, Any]:
        return {**self._values, "after": after, "from_id": max(after, self._low - 1), "limit": limit}

    def _read(self, statement: sql.SQL, values: Mapping[str, Any], *, is_last: bool = False) -> _Page | None:
        """Return the page of a statement, None if it finds no rows."""
        with translated():
            groups = sorted(self._execute(statement, values).fetchall())
        if not groups:
            return None
        lasts, counts, data, lengths = zip(*groups, strict=True)
        return _Page(PackedRows(b"".join(data), b"".join(lengths)), sum(counts), lasts[-1], is_last)

    def _execute(self, statement: sql.SQL, values: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        return self._connection.cursor(binary=True).execute(statement, values, prepare=True)


def streamed(
    connection: psycopg.Connection[Any], selection: Selection, columns: Sequence[str], found: str
) -> Iterator[PackedRows]:
    """Yield the rows of the statement `found`, in pages of up to `PAGE_BYTES` and a row. The statement stays open until
    all rows were taken. Raises psycopg.Error."""
    text = rendered(_filled(selection, _COPIED.replace("<found>", found), columns)).as_string(None)
    statement = f"COPY ({text}) TO STDOUT (FORMAT binary)".replace("%%", "%").encode()
    rows: list[bytes | bytearray | memoryview] = []
    lengths: list[int] = []
    size = 0
    with connection.cursor().copy(statement) as copy:
        for number, message in enumerate(copy):  # Postgres sends a message for each row
            row = message if number else message[_COPY_HEADER_BYTES:]
            if len(row) <= _TRAILER_BYTES:
                continue
            rows.append(row[_ROW_HEADER_BYTES:])
            lengths.append(len(rows[-1]))
            size += lengths[-1]
            if size >= PAGE_BYTES:
                yield _joined(rows, lengths)
                rows, lengths, size = [], [], 0
    yield _joined(rows, lengths)


def _joined(rows: Sequence[bytes | bytearray | memoryview], lengths: Sequence[int]) -> PackedRows:
    return PackedRows(b"".join(rows), struct.pack(f">{len(lengths)}i", *lengths))


def _filled(selection: Selection, text: str, columns: Sequence[str]) -> sql.Composed:
    """Fill in a statement, with <packed> and <size> of rows that have the name `page`."""
    named = ", ".join(f"page.{each}::bigint" if each == "id" else f"page.{each}" for each in columns)
    texts = [f"coalesce(octet_length(page.{each}), 0)" for each in columns if each in _TEXTS]
    arrays = [_ARRAY_BYTES.format(array=f"page.{each}") for each in columns if each in _ARRAYS]
    size = " + ".join(["8", *texts, *arrays])
    return selection.fill(
        text.replace("<packed>", f"record_send(ROW({named}))").replace("<size>", size), columns=columns
    )
