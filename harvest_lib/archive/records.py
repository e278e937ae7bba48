"""Reads the records of a segment from Postgres as Arrow tables.

The columns are the columns of the outbox. `create_time` is in microseconds of UTC; infinity and -infinity are the
largest and the smallest 64-bit integer, as in Postgres. `transaction_id` is a 64-bit integer.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import ArchiveError, install_hint
from harvest_lib.outbox.record_pages import pages, sized
from harvest_lib.outbox.segments.segment_list import Segment
from harvest_lib.postgres.translation import translated

_MOST_RECORDS = 50_000
_MOST_BYTES = 32 * 1024 * 1024
"""Maximum records and bytes of an Arrow table. The last record of a table may exceed the limit of bytes."""

_MICROSECONDS = """
CASE create_time WHEN 'infinity' THEN 9223372036854775807 WHEN '-infinity' THEN -9223372036854775808
     ELSE (extract(epoch FROM create_time) * 1000000)::bigint END
"""
_DAY = """
CASE WHEN isfinite(create_time) THEN to_char(create_time AT TIME ZONE 'UTC', 'YYYY-MM-DD') ELSE create_time::text END
"""
_ROWS = f"""
SELECT {_DAY} AS day, id, transaction_id::text::bigint, {_MICROSECONDS} AS create_time, kafka_topic, kafka_key,
       kafka_value, kafka_header_keys, kafka_header_values
FROM {{segment}}
"""  # noqa: S608 - it is above
_SELECT = sized(_ROWS, 'page.kafka_topic COLLATE "C", page.day COLLATE "C", page.id')
_VALUE_TYPE = """
SELECT atttypid = 'bytea'::regtype FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'kafka_value'
"""

_TOTALS = """
SELECT count(*), (SELECT transaction_id::text::bigint FROM {segment} ORDER BY transaction_id DESC LIMIT 1)
FROM {segment}
"""

Rows = Iterator[tuple[Any, ...]]


def load_pyarrow() -> Any:
    """Import and return the module `pyarrow`. Raises ArchiveError if it is not installed."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional, and half a second
        import pyarrow.parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ArchiveError(
            "an archive needs the package pyarrow, which is not installed",
            evidence=str(error),
            next_step=install_hint("archive"),
        ) from error
    return pa


class SegmentRecords:
    """The rows of a segment, ordered by topic, day and id. All methods must be called in a single transaction of the
    connection."""

    def __init__(self, connection: psycopg.Connection[Any], segment: Segment) -> None:
        self._connection = connection
        self.segment = segment
        with translated():
            row = connection.execute(_VALUE_TYPE, (str(segment.table),)).fetchone()
        self.schema = schema_of(is_binary=row is not None and bool(row[0]))

    def totals(self) -> tuple[int, int | None]:
        """Return two values: the number of records, and the largest transaction id of a record (None without
        records)."""
        with translated():
            row = self._connection.execute(sql.SQL(_TOTALS).format(segment=self.segment.table.identifier)).fetchone()
        return row if row is not None else (0, None)

    def groups(self) -> Iterator[tuple[str, str, Rows]]:
        """Yield topic, day and rows of each group; rows are ordered by id. The rows of a group have to be read
        completely before the next group."""
        statement = sql.SQL(_SELECT).format(segment=self.segment.table.identifier)
        with translated(), self._connection.cursor("harvest_archive") as cursor:
            cursor.execute(statement)
            for (topic, day), rows in groupby(chain.from_iterable(pages(cursor)), key=itemgetter(4, 0)):
                yield topic, day, (row[1:] for row in rows)

    def tables(self, rows: Rows) -> Iterator[Any]:
        """Yield the rows as Arrow tables of limited size."""
        taken: list[tuple[Any, ...]] = []
        size = 0
        for row in rows:
            taken.append(row)
            size += _size(row)
            if len(taken) >= _MOST_RECORDS or size >= _MOST_BYTES:
                yield self.table(taken)
                taken, size = [], 0
        if taken:
            yield self.table(taken)

    def table(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """Return rows as an Arrow table. Raises ArchiveError for text that is not UTF-8."""
        pa = load_pyarrow()
        try:
            columns = [
                pa.array(column, type=field.type if field.name != "create_time" else pa.int64()).cast(field.type)
                for column, field in zip(zip(*rows, strict=True), self.schema, strict=True)
            ]
        except (UnicodeEncodeError, pa.ArrowInvalid) as error:
            raise ArchiveError(
                f"the segment {self.segment.name} has a record that Parquet cannot hold",
                evidence=f"between the ids {rows[0][0]} and {rows[-1][0]}: {error}",
                next_step="use an outbox of `harvest init --value-type bytea`, or keep this segment by hand",
            ) from error
        return pa.Table.from_arrays(columns, schema=self.schema)


def schema_of(*, is_binary: bool) -> Any:
    """Return the Arrow schema of an archive of version 1. The column `kafka_value` has bytes if `is_binary` is True,
    else text."""
    pa = load_pyarrow()
    return pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("transaction_id", pa.int64(), nullable=False),
            pa.field("create_time", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("kafka_topic", pa.string(), nullable=False),
            pa.field("kafka_key", pa.string(), nullable=False),
            pa.field("kafka_value", pa.binary() if is_binary else pa.string()),
            pa.field("kafka_header_keys", pa.list_(pa.string()), nullable=False),
            pa.field("kafka_header_values", pa.list_(pa.string()), nullable=False),
        ]
    )


def names_and_types(schema: Any) -> Mapping[str, str]:
    """Return a mapping from the name of each column of an Arrow schema to its type, as text, for a manifest."""
    return {field.name: str(field.type) for field in schema}


def _size(row: tuple[Any, ...]) -> int:
    value, keys, values = row[5], row[6], row[7]
    return 100 + len(value or "") + sum(map(len, keys)) + sum(len(each or "") for each in values)
