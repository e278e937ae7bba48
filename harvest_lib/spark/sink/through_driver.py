"""Writes records into the outbox by a single COPY of the driver, without staging.

    partitions ─► tasks encode rows ─► driver reads each partition whole, in order ─► one COPY ─► ledger, commit

Promises
- A batch is committed as a whole or not at all, and once: one transaction has the records and the ledger's entry.
- A task that fails, is repeated or runs twice changes nothing: Spark gives the driver each partition once, and whole.
- The records of a key get ids in the declared order. Without an order all records get ids in the frame's order.

Postgres converts no values here, so columns must be text or integers, which have the same text in Spark and Postgres.
There is no business table, because a connection runs one COPY at a time.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.copy import QueuedLibpqWriter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from harvest_lib.errors import ConfigError
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.columns import SAME_TEXT
from harvest_lib.spark.sink.content import Content, column, row_hash
from harvest_lib.spark.sink.database import postgres_errors
from harvest_lib.spark.sink.plan import WritePlan
from harvest_lib.spark.sink.promotion import (
    LedgerEntry,
    check_same,
    enter_ledger,
    fault,
    ledger_entry,
    refused,
    rows_refused,
)
from harvest_lib.spark.sink.records import KEY_SEPARATOR, BatchId, Fixed
from harvest_lib.spark.sink.staging import computing

_SORTED_ALIKE = {
    *("smallint", "integer", "bigint", "numeric", "real", "double precision", "boolean", "date"),
    *("timestamp with time zone", "timestamp without time zone"),
}
_OUTBOX_TYPES = {
    "kafka_topic": {"character varying", "text"},
    "kafka_key": {"character varying", "text"},
    "kafka_value": {"character varying", "text", "bytea"},
    "kafka_header_keys": {"text[]"},
    "kafka_header_values": {"text[]"},
}
_CHUNK = "data binary, rows bigint, hash_sum decimal(38,0), keyless bigint, longest_key bigint, longest_value bigint"
_PARTS = 8
"""Number of partitions if an order is declared. The driver writes a partition while Spark computes the next."""
_CHUNK_BYTES = 4 * 1024 * 1024
_BEGIN, _END = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0), struct.pack(">h", -1)
_TEXT_OID, _FIELDS, _NULL = 25, 5, -1
_BYTES = pa.large_binary()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Parameters of a task. `headers` are pairs of name and fixed text. The text is None if each row has its own text
    for the header. `measures_value` is true if the length of values is limited."""

    topic: str
    headers: tuple[tuple[str, str | None], ...]
    measures_value: bool


def check(plan: WritePlan) -> None:
    """Raise ConfigError for a plan that can be written by JDBC, but not through the driver."""
    if plan.tables.business is not None:
        raise _only_jdbc("a business table", "--table")
    for name, option in plan.records.row_columns.items():
        raise _only_jdbc(f"a topic, headers or a time of each record ({name!r})", option)
    for name, types in _OUTBOX_TYPES.items():
        if (found := plan.outbox[name].type) not in types:
            raise _only_jdbc(f"an outbox whose {name} is {found}", "--outbox")
    if plan.outbox["create_time"].filled_by is None:
        raise _only_jdbc("an outbox whose create_time has no default", "--outbox")
    if not isinstance(plan.records.value, str):
        raise _only_jdbc("a value of several columns", "--value", "combine them with to_json(struct(...))")
    for name, option in plan.records.columns(plan.names).items():
        taken = SAME_TEXT | {plan.outbox["kafka_value"].type} if option == "--value" else SAME_TEXT
        if (found := plan.type_of(name)) not in taken:
            raise _only_jdbc(f"a column {name!r} of type {found}", option, "cast it to a string in the frame")
    for name in plan.records.order_by:
        if (found := plan.type_of(name)) not in _SORTED_ALIKE:
            raise _only_jdbc(f"an order by {name!r}, which is {found}", "--order-by", "order by a number or a time")


def _only_jdbc(what: str, option: str, instead: str = "") -> ConfigError:
    steps = [*([instead] if instead else []), "leave `through` out: the way by JDBC takes it"]
    return ConfigError(f"{what} cannot be written through the driver", field=option, next_step="; or ".join(steps))


def write(
    connection: psycopg.Connection, batch: str, frame: DataFrame, *, run: str, plan: WritePlan
) -> tuple[LedgerEntry, bool] | None:
    """Write the frame as the batch. Return two values: the batch's ledger row, and True if this call has written that
    row. Return None if the frame has no rows.

    The outbox is locked against other batches from Spark's first rows until the commit. Raises BatchConflict,
    RecordError, PromotionRefused, SourceError or another DatabaseError. After an error nothing is written.
    """
    chunks = _computed(_chunks(frame, batch, plan), batch)
    first = next(chunks, None)
    if first is None:
        return None
    names = sql.SQL(", ").join(map(sql.Identifier, _OUTBOX_TYPES))
    copying = plan.tables.fill(sql.SQL(queries.COPY_RECORDS), columns=names)
    with postgres_errors(f"writing batch {batch}"), connection.transaction():
        connection.execute(queries.LOCK_OUTBOX, {"outbox": plan.tables.outbox.as_string(None)})
        entry = ledger_entry(connection, batch, tables=plan.tables)
        if entry is not None:  # written after the caller looked, by the data source, which takes no batch lock
            check_same(entry, batch, _content(chain([first], chunks)))
            return entry, False
        with connection.cursor() as cursor:
            with cursor.copy(copying, writer=QueuedLibpqWriter(cursor)) as copy:
                copy.write(_BEGIN)
                found = _content(_taken(chain([first], chunks), copy, batch, plan))
                copy.write(_END)
            if cursor.rowcount != found.rows:
                raise refused(batch, f"Spark computed {found}; {cursor.rowcount} rows reached the outbox")
        entry = enter_ledger(connection, batch, found, run=run, tables=plan.tables, staging_seconds=0)
        return entry, True


def _taken(chunks: Iterable[Any], copy: psycopg.Copy, batch: str, plan: WritePlan) -> Iterator[Any]:
    for chunk in chunks:
        if evidence := fault(plan, chunk.keyless, chunk.longest_key, chunk.longest_value):
            raise rows_refused(batch, evidence)
        copy.write(bytes(chunk.data))
        yield chunk


def _content(chunks: Iterable[Any]) -> Content:
    rows, hash_sum = 0, Decimal(0)
    for chunk in chunks:
        rows, hash_sum = rows + chunk.rows, hash_sum + chunk.hash_sum
    return Content(rows=rows, content_hash=str(hash_sum))


def _computed(chunks: DataFrame, batch: str) -> Iterator[Any]:
    with computing(batch):
        yield from chunks.toLocalIterator(prefetchPartitions=True)


# -- work of Spark


def _chunks(frame: DataFrame, batch: str, plan: WritePlan) -> DataFrame:
    """Return a frame of chunks of the COPY's data, in the order in which records get their ids."""
    records = plan.records
    assert isinstance(records.value, str) and records.topic is not None  # noqa: S101, PT018 - they were checked
    parts = [part for name in records.key_columns for part in (F.lit(KEY_SEPARATOR), column(name).cast("string"))]
    key = F.concat(*parts[1:])
    headers = [
        (name, source.text if isinstance(source, Fixed) else batch if isinstance(source, BatchId) else None)
        for name, source in records.headers.items()
    ]
    shown = [column(source).cast("string") for source in records.headers.values() if isinstance(source, str)]
    as_bytes = plan.type_of(records.value) == "bytea"
    rows = frame
    if records.order_by:
        numbered, number = _numbered(frame)
        rows = numbered.repartition(_PARTS, key).sortWithinPartitions(
            *(column(name).asc_nulls_last() for name in records.order_by), column(number)
        )
    rows = rows.select(
        key.alias("key"),
        column(records.value).cast("binary" if as_bytes else "string").alias("value"),
        *(each.alias(f"header_{number}") for number, each in enumerate(shown)),
        row_hash(frame.columns).alias("row_hash"),
    )
    shape = _Shape(
        topic=records.topic,
        headers=tuple(headers),
        measures_value=plan.outbox["kafka_value"].longest_chars is not None,
    )
    return rows.mapInArrow(partial(_encoded, shape), _CHUNK)


def _numbered(frame: DataFrame) -> tuple[DataFrame, str]:
    """Return the frame with a column that numbers the rows in order, and the name of that column."""
    name, given = "_row", {each.lower() for each in frame.columns}  # names are case-insensitive in Spark
    while name in given:
        name += "_"
    return frame.withColumn(name, F.monotonically_increasing_id()), name


def _encoded(shape: _Shape, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        most = max(1, batch.num_rows * _CHUNK_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, most):
            yield _chunk(shape, batch.slice(start, most))


def _chunk(shape: _Shape, batch: pa.RecordBatch) -> pa.RecordBatch:
    key, value, *shown, hashes = batch.columns
    longest_value = pc.max(pc.utf8_length(value)).as_py() if shape.measures_value else None
    return pa.RecordBatch.from_pydict(
        {
            "data": pa.array([_lines(shape, key, value, shown)], pa.binary()),
            "rows": pa.array([batch.num_rows], pa.int64()),
            "hash_sum": pa.array([pc.sum(hashes.cast(pa.decimal128(38, 0))).as_py()], pa.decimal128(38, 0)),
            "keyless": pa.array([key.null_count], pa.int64()),
            "longest_key": pa.array([pc.max(pc.utf8_length(key)).as_py()], pa.int64()),
            "longest_value": pa.array([longest_value], pa.int64()),
        }
    )


def _lines(shape: _Shape, key: pa.Array, value: pa.Array, shown: list[pa.Array]) -> bytes:
    """Return rows in COPY's binary format. A row is its number of fields, then length and bytes of each field."""
    names = b"".join(_field(name.encode()) for name, _ in shape.headers)
    fixed = struct.pack(">h", _FIELDS) + _field(shape.topic.encode())
    parts: list[Any] = [_same(fixed), *_fields(key), *_fields(value)]
    rest, lengths = iter(shown), np.zeros(len(key), np.int64)
    values: list[Any] = []
    for _, text in shape.headers:
        if text is not None:
            values.append(_same(field := _field(text.encode())))
            lengths += len(field)
        else:
            found = next(rest)
            values += _fields(found)
            lengths += 4 + pc.fill_null(pc.binary_length(found), 0).to_numpy(zero_copy_only=False)
    count = len(shape.headers)
    start = struct.pack(">iiiii", 1, 0, _TEXT_OID, count, 1) if count else struct.pack(">iii", 0, 0, _TEXT_OID)
    parts += [_same(_field(start + names)), _lengths(lengths + len(start)), _same(start), *values]
    joined = pc.binary_join_element_wise(*parts, _same(b""))  # the last argument is the separator
    _, offsets, text = joined.buffers()
    places = memoryview(offsets).cast("q")
    return bytes(text.slice(places[0], places[len(key)] - places[0]))


def _field(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _fields(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lengths of the values in COPY's format (-1 for null), and the bytes of the values."""
    contents = values.cast(_BYTES)
    lengths = pc.fill_null(pc.binary_length(contents), _NULL).to_numpy(zero_copy_only=False)
    return _lengths(lengths), pc.fill_null(contents, b"")


def _lengths(lengths: "np.ndarray[Any, np.dtype[np.int64]]") -> pa.Array:
    # numpy's own type for bytes would drop zero bytes at the end.
    buffers = [None, pa.py_buffer(lengths.astype(">i4").tobytes())]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(lengths), buffers).cast(_BYTES)


def _same(content: bytes) -> pa.Scalar:
    return pa.scalar(content, _BYTES)
