"""The reads of an outbox by Spark: the rows that a snapshot sees, in ranges of ids, and the check that no row was lost.

`PackedWindow` reads the rows page by page. No transaction stays open between pages, so Spark holds up nothing in
Postgres. Each task gets its snapshots as text. After a task has read its rows it checks that their segments are still
attached. If a segment is gone, the task fails, because rows of that segment may not have been read.

An outbox whose rows are deleted on delivery cannot be read page by page. A single statement, with a snapshot of its
own, reads the whole outbox.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import StructType

from harvest_lib.errors import CheckpointError, OutboxTableError, ServerRegressed
from harvest_lib.outbox.kept_rows import keeps_rows
from harvest_lib.outbox.row_security import require_all_rows
from harvest_lib.outbox.segments import Segment
from harvest_lib.outbox.table import ValueType
from harvest_lib.postgres.database import WAITS_FOR_CLIENT, connect, lift_timeouts
from harvest_lib.postgres.translation import translated
from harvest_lib.source import Selection, server_identity
from harvest_lib.source.filters import shard_conditions
from harvest_lib.source.packed_window import PackedRows, PackedWindow, streamed
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.selection import COLUMNS
from harvest_lib.spark import seen_rows
from harvest_lib.spark.data_source.archived import ArchivedPartition, plan_archived
from harvest_lib.spark.data_source.attached import Attached, attached, files, filled, lowest_of, table_of
from harvest_lib.spark.data_source.packed import record_batch
from harvest_lib.spark.data_source.pushed import Condition, as_sql, ids_of
from harvest_lib.spark.data_source.read_options import ReadOptions, arrow_schema
from harvest_lib.spark.data_source.windows import (
    HIGHEST_ID,
    NOTHING,
    Offset,
    OutboxPartition,
    Window,
    dropped,
    newest_snapshot,
)

NAME = "Spark"
"""The text that errors show in place of a subscription's name."""

_TEXT = sql.SQL("{}::text")
_TEXTS = sql.SQL("{}::text[]")
_FOLLOWED = {
    **COLUMNS,
    **{name: _TEXT.format(COLUMNS[name]) for name in ("kafka_topic", "kafka_key")},
    **{name: _TEXTS.format(COLUMNS[name]) for name in ("kafka_header_keys", "kafka_header_values")},
}
_PURGED = {**_FOLLOWED, "transaction_id": sql.SQL("NULL::bigint")}

_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_IDS = "SELECT min(id), max(id) FROM {table} WHERE id BETWEEN %s AND %s"
_ALL_NOW = "SELECT {columns} FROM {table} WHERE true {filter} ORDER BY {id}"


def value_type(options: ReadOptions) -> ValueType:
    """Return the type of values, text or bytes. Raises OutboxTableError or DatabaseError."""
    with connect(options.conninfo) as connection:
        return table_of(options).value_type(connection)


def is_followed(connection: psycopg.Connection[Any], options: ReadOptions) -> bool:
    """Return True if rows stay in the outbox after their delivery. Raises OutboxTableError or DatabaseError."""
    return keeps_rows(connection, table_of(options))


def require_followed(connection: psycopg.Connection[Any], options: ReadOptions) -> None:
    """Raise OutboxTableError unless a stream, or a batch of an earlier snapshot, can read the outbox."""
    if not is_followed(connection, options):
        raise OutboxTableError(
            f"no stream can follow the outbox {options.outbox}, and no earlier snapshot is kept: its rows are "
            "deleted when they were delivered",
            evidence="it has goharvest's layout, or a subscription that marks",
            next_step="turn it into the native table (`harvest migrate`) and harvest with `source: snapshot`, or read "
            "it as a batch without the option snapshot, or read the topics",
        )


def now(connection: psycopg.Connection[Any], options: ReadOptions) -> tuple[Snapshot, Attached, dict[str, str]]:
    """Return a snapshot, the segments in that snapshot, and the server's position in its log. All rows that the
    snapshot sees are on disk."""
    server_identity.require_primary(connection)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with translated(), connection.transaction():
        (row,) = connection.execute(_SNAPSHOT)
        segments = attached(connection, options)
    server_identity.barrier(connection)
    return Snapshot.parse(row[0]), segments, server_identity.place(connection).as_json()


def plan_batch(options: ReadOptions, conditions: Sequence[Condition] = ()) -> list[OutboxPartition | ArchivedPartition]:
    """Return a partition for each segment and range of its ids, and for each file of the archive that the option
    `archive` names. Return a single partition if rows are deleted on delivery. The partitions have the rows that are
    committed now, or, with the option `snapshot`, the rows that this snapshot saw, and of these the rows that meet all
    `conditions`. Empty segments, and segments and files without such ids, have no partition."""
    required, (lowest, highest) = (*options.conditions, *conditions), ids_of(conditions)
    with connect(options.conninfo) as connection:
        if options.snapshot is not None:
            require_followed(connection, options)
        elif not is_followed(connection, options):
            return [OutboxPartition(windows=(), floor=0, below=None, conditions=required)]
        there = files(connection, attached(connection, options).segments)  # before the snapshot, which sees their rows
        snapshot, found, server = now(connection, options)
        there = {**files(connection, found.segments), **there}
        segments = [(each, _ids(connection, options, each)) for each in filled(connection, found.segments)]
        if options.snapshot is not None:
            snapshot = _earlier(options.snapshot, snapshot, server["system"])
        table, url = table_of(options), options.archive
        parts: list[OutboxPartition | ArchivedPartition] = []
        parts += (
            plan_archived(connection, table, url, found.floor, snapshot, conditions=required) if url is not None else []
        )
    for each, ids in segments:
        first, last = lowest_of(each), HIGHEST_ID if each.upper is None else each.upper - 1
        file = (str(each.table), there[str(each.table)])
        for begin, end in _split(max(first, lowest), min(last, highest), ids, options.shards):
            window = Window(prev=NOTHING, cur=str(snapshot), first=begin, last=end, server=server)
            parts.append(
                OutboxPartition(windows=(window,), floor=first, below=each.upper, file=file, conditions=required)
            )
    return parts


def _ids(connection: psycopg.Connection[Any], options: ReadOptions, segment: Segment) -> tuple[int, int]:
    """Return the lowest and the highest id in a segment."""
    values = lowest_of(segment), HIGHEST_ID if segment.upper is None else segment.upper - 1
    if options.shards > 1:
        with translated():
            statement = sql.SQL(_IDS).format(table=table_of(options).identifier)
            low, high = connection.execute(statement, values).fetchone() or values
        return values if low is None else (low, high)
    return values


def _split(first: int, last: int, ids: tuple[int, int], parts: int) -> list[tuple[int, int]]:
    """Divide the ids from `first` to `last` into up to `parts` ranges. The ranges divide `ids` into equal parts."""
    lowest, highest = max(first, ids[0]), min(last, ids[1])
    width = max(1, -(-(highest - lowest + 1) // parts))
    starts = [first, *(each for n in range(1, parts) if lowest < (each := lowest + n * width) <= highest)]
    return [
        (start, end)
        for start, end in zip(starts, [*(each - 1 for each in starts[1:]), last], strict=True)
        if start <= end
    ]


def _earlier(text: str, latest: Snapshot, ours: str) -> Snapshot:
    """Return the snapshot in the option. Raises CheckpointError if it is of another server or ahead of this server."""
    given, _, system = text.partition("@")
    snapshot = Snapshot.parse(given)
    if system != ours or not latest.covers(snapshot):
        raise CheckpointError(
            "the snapshot is of another server" if system != ours else "the snapshot is ahead of the database",
            evidence=f"it is {text}; this server is {ours}, which has come to {latest}",
            next_step="correct the DSN, or give a snapshot of this server, as `harvest subscriptions list` shows it",
        )
    return snapshot


def read(options: ReadOptions, part: OutboxPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, ascending by id within each window."""
    arrow = arrow_schema(schema)
    columns = ["id", *(name for name in arrow.names if name != "id")]
    if not part.windows:
        yield from _batches(_all_now(options, part.conditions, columns), columns, arrow)
        return
    for window in part.windows:
        yield from _batches(_window(options, part, window, columns), columns, arrow)
    with connect(options.conninfo) as connection:
        found = attached(connection, options)
        found.require(part.floor, part.below)
        if part.file is not None and files(connection, found.segments).get(part.file[0]) != part.file[1]:
            raise dropped(f"the segment {part.file[0]} was emptied or rewritten after the batch was planned")
        require_seen(connection, options, part.offsets)


def _batches(pages: Iterator[PackedRows], columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows in pages:
        batch = record_batch(rows, columns, schema) if rows else None
        del rows  # a row may be large: it is in memory once at a time
        if batch is not None:
            yield batch
        del batch


def require_seen(connection: psycopg.Connection[Any], options: ReadOptions, offsets: Iterable[Offset]) -> None:
    """Raise ServerRegressed or CheckpointError unless the server still has the last rows before a stream's offsets."""
    table = table_of(options)
    for offset in offsets:
        if offset.get("initial"):
            continue
        if "seen" not in offset:
            raise CheckpointError(
                "the query's checkpoint was written by another version",
                evidence="its offsets have no `seen`, which reveals a restored database",
                next_step="go on with that version, or start the query with a new checkpoint",
            )
        seen = newest_snapshot(offset)
        with explained():
            server_identity.check(connection, offset["server"], NAME)
            server_identity.check_transactions(connection, Snapshot.parse(seen).xmax, NAME)
            seen_rows.require_seen(connection, table, seen, offset["seen"], lambda: attached(connection, options).floor)


@contextmanager
def explained() -> Iterator[None]:
    """Replace errors about a refused position by errors whose text is about a Spark query instead of a subscription."""
    try:
        yield
    except (CheckpointError, ServerRegressed) as error:
        raise type(error)(
            "the query's checkpoint does not fit this database: it was restored, failed over, or is another database",
            evidence=f"{error.cause}: {error.evidence}",
            next_step="correct the DSN; or compare what was read with the outbox, and start the query with a new "
            "checkpoint",
        ) from error


def _window(
    options: ReadOptions, part: OutboxPartition, window: Window, columns: Sequence[str]
) -> Iterator[PackedRows]:
    shard = [] if part.shard is None else shard_conditions(part.shard, options.shards)
    conditions = [*shard, *map(as_sql, part.conditions)]
    if window.last < HIGHEST_ID:
        conditions.append(sql.SQL("id <= {}").format(sql.Literal(window.last)))
    selection = Selection(table=table_of(options).identifier, columns=_FOLLOWED, conditions=conditions)
    source = PackedWindow(options.conninfo, selection, subscription=NAME)
    try:
        with explained():
            source.open(window.position)
        yield from source.pages(columns)
    finally:
        source.close()


def _all_now(options: ReadOptions, conditions: Sequence[Condition], columns: Sequence[str]) -> Iterator[PackedRows]:
    """Yield the pages of all rows in the outbox that meet the conditions, read by a single statement."""
    with connect(options.conninfo, WAITS_FOR_CLIENT) as connection:
        table = table_of(options).identifier
        guard = require_all_rows(connection, [table])
        selection = Selection(table=table, columns=_PURGED, conditions=list(map(as_sql, conditions)), guard=guard)
        lift_timeouts(connection)
        with translated():
            yield from streamed(connection, selection, columns, _ALL_NOW)
