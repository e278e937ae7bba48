"""A window between two snapshots, read in pages of packed rows, for readers that take columns instead of rows.

Postgres packs the rows of a page into a single value, so that the client makes no object for a row or a field. No
transaction stays open while the caller works on a page. A thread reads the next page meanwhile.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from harvest_lib.outbox.record_pages import ARRAY_BYTES
from harvest_lib.postgres.database import rendered
from harvest_lib.postgres.translation import translated
from harvest_lib.record import PAGE_BYTES
from harvest_lib.source import snapshot_queries as queries
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.selection import Selection
from harvest_lib.source.snapshot import SnapshotSource

_MOST_ROWS = 50_000
_FILLED = 0.9
"""The part of `PAGE_BYTES` that the rows of a page are expected to fill."""
_TEXTS = ("kafka_topic", "kafka_key", "kafka_value")
_ARRAYS = ("kafka_header_keys", "kafka_header_values")

# OFFSET 0 has each row packed once, although it is used twice. Groups of 256 ids keep the values small: to send a value
# of megabytes costs Postgres more than to pack its rows.
_PAGE = """
SELECT max(page.id), count(*), string_agg(page.packed, ''::bytea),
  string_agg(int4send(octet_length(page.packed)), ''::bytea)
FROM (SELECT page.id, <packed> AS packed FROM (<found>) AS page OFFSET 0) AS page
GROUP BY page.id >> 8
"""
_FITS = "SELECT CASE WHEN sum(<size>) <= %(bytes)s THEN %(limit)s::int ELSE 0 END FROM (<found>) AS page"
_WITHIN = """
SELECT * FROM (
  SELECT page.*, sum(<size>) OVER (ROWS UNBOUNDED PRECEDING) AS harvest_sum,
         row_number() OVER (ROWS UNBOUNDED PRECEDING) AS harvest_number
  FROM (<found>) AS page
) AS page
WHERE harvest_sum <= %(bytes)s OR harvest_number = 1
"""
_COPIED = "SELECT <packed> FROM (<found>) AS page"
_COPY_HEADER_BYTES, _ROW_HEADER_BYTES, _TRAILER_BYTES = 19, 6, 2


class PackedRows(NamedTuple):
    """Rows, as `record_send` packs each: the number of columns, then of each column its type, its length (-1 for NULL)
    and its bytes in Postgres' binary format. All these numbers are signed, of 4 bytes, and big-endian, and so are the
    lengths of the rows in `lengths`."""

    data: bytes
    lengths: bytes

    def __bool__(self) -> bool:
        return bool(self.lengths)


class PackedWindow(SnapshotSource):
    """A source whose position is within a window: see `SnapshotSource`. It returns packed rows."""

    _low = 0
    _values: Mapping[str, Any] = {}

    def _begin_window(self, cur: Snapshot, after: int) -> None:
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
        found = queries.BOTH_BY_ID if ended else queries.BY_ID
        texts = [_PAGE.replace("<found>", _WITHIN).replace("<found>", found)]
        if not ended:  # adding up sizes takes a third of the time of adding up from row to row
            fits = f"({_FITS.replace('<found>', found)})"
            texts.insert(0, _PAGE.replace("<found>", found.replace("%(limit)s", fits)))
        statements = [rendered(_filled(self._filter.selection, text, columns)) for text in texts]
        after, limit = self._after if ended else max(self._after, self._low - 1), _MOST_ROWS
        values = {**self._values, "ended": ended, "bytes": PAGE_BYTES}
        with ThreadPoolExecutor(1, "harvest-read") as pool:

            def submit() -> "Future[tuple[int, int, PackedRows]]":
                return pool.submit(self._packed, statements, {**values, "after": after, "limit": limit})

            page = submit()
            while True:
                after, count, rows = page.result()
                if not count:
                    return
                size = len(rows.data)
                limit = max(1, min(_MOST_ROWS, int(_FILLED * PAGE_BYTES * count / size)))
                is_large = size > 2 * PAGE_BYTES
                if not is_large:
                    page = submit()
                yield rows
                if is_large:  # so that two such rows are never in memory at once
                    page = submit()

    def _packed(self, statements: Sequence[sql.SQL], values: Mapping[str, Any]) -> tuple[int, int, PackedRows]:
        """Return the last id in the next page, the number of rows, and the rows: the result of the first statement that
        finds rows."""
        with translated():
            for statement in statements:
                cursor = self._connected().cursor(binary=True).execute(statement, values, prepare=True)
                if groups := sorted(cursor.fetchall()):
                    lasts, counts, data, lengths = zip(*groups, strict=True)
                    return lasts[-1], sum(counts), PackedRows(b"".join(data), b"".join(lengths))
        return 0, 0, PackedRows(b"", b"")


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
    named = ", ".join(f"page.{each}" for each in columns)
    texts = [f"coalesce(octet_length(page.{each}), 0)" for each in columns if each in _TEXTS]
    arrays = [ARRAY_BYTES.format(array=f"page.{each}") for each in columns if each in _ARRAYS]
    size = " + ".join(["8", *texts, *arrays])
    return selection.fill(
        text.replace("<packed>", f"record_send(ROW({named}))").replace("<size>", size), columns=columns
    )
