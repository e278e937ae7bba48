"""The work of a task of the data source: append Arrow batches to the staging table by COPY, in a single transaction.

The transaction's id is the id of the task's attempt, and the task's commit message contains this id. A task that fails,
is repeated or runs twice leaves rows under attempt ids that no commit message contains.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from harvest_lib.postgres.database import lift_timeouts
from harvest_lib.spark.errors import PromotionRefused
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.columns import SAME_TEXT
from harvest_lib.spark.sink.content import nul_evidence
from harvest_lib.spark.sink.database import connect, postgres_errors
from harvest_lib.spark.sink.nested import header_texts, json_texts
from harvest_lib.spark.sink.plan import WritePlan
from harvest_lib.spark.sink.promotion import fault, rows_refused
from harvest_lib.spark.sink.records import KEY_SEPARATOR
from harvest_lib.spark.sink.staging_tables import Staged

_TEXT = pa.large_string()  # a batch may be longer than 2 GiB
_CARRIED: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "column": lambda column: column,
    "json": json_texts,
    "headers": header_texts,
}
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAttempt:
    """The attempt under which a task has staged its rows. `attempt` is empty for a partition without rows."""

    run: str
    partition: int
    attempt: str = ""
    rows: int = 0


def copy_batches(
    batches: Iterable[pa.RecordBatch], *, dsn: str, plan: WritePlan, staged: Staged, partition: int
) -> NamedAttempt:
    """Stage a partition's rows. On an error no row is staged.

    Raises RecordError, PromotionRefused, DatabaseUnavailable or another DatabaseError.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return NamedAttempt(run=staged.run, partition=partition)
    columns = sql.SQL(", ").join(sql.Identifier(each.staged) for each in plan.columns)
    rows = 0
    with connect(dsn) as connection, postgres_errors(f"staging partition {partition}"), connection.transaction():
        lift_timeouts(connection)  # COPY waits for Spark, which computes the partition meanwhile
        (begun,) = connection.execute(queries.BEGIN_ATTEMPT, {"batch": staged.batch, "run": staged.run})
        with connection.cursor() as cursor:
            with cursor.copy(plan.tables.fill(sql.SQL(queries.COPY_ROWS), columns=columns)) as copy:
                for given in chain([first], filled):
                    batch, evidence = carried(given, plan)
                    if evidence:
                        raise rows_refused(staged.batch, f"in a part of partition {partition}, {evidence}")
                    copy.write(copy_text(batch, partition=partition, first_row=rows))
                    rows += batch.num_rows
            if cursor.rowcount != rows:
                raise PromotionRefused(
                    f"partition {partition} was not staged",
                    evidence=f"Spark computed {rows} rows; {cursor.rowcount} reached {plan.tables.staging.as_string()}",
                    next_step="check that table for triggers",
                )
    return NamedAttempt(run=staged.run, partition=partition, attempt=begun[0], rows=rows)


def carried(batch: pa.RecordBatch, plan: WritePlan) -> tuple[pa.RecordBatch, str]:
    """Return the batch as the staging table has it, and why its rows cannot be records; empty text if they can."""
    columns = []
    for each, column in zip(plan.columns, batch.columns, strict=True):
        try:
            columns.append(_CARRIED[each.content](column))
        except (ValueError, OverflowError) as error:
            what = "the headers" if each.content == "headers" else "a value"
            return batch, f"{what} in {each.name!r} cannot be written: {error}"
    made = pa.RecordBatch.from_arrays(columns, names=[each.name for each in plan.columns])
    evidence = nul_evidence(_nul_counts(made, plan.names))
    return made, evidence or _text_evidence(made, plan) or _limit_evidence(made, plan)


def _text_evidence(batch: pa.RecordBatch, plan: WritePlan) -> str:
    """Return which of key and value has bytes that are no text."""
    records, values_are_bytes = plan.records, plan.outbox["kafka_value"].type == "bytea"
    for name in (records.key, None if values_are_bytes else records.value):
        if isinstance(name, str) and name in plan.names and plan.type_of(name) == "bytea":
            try:
                texts = batch.column(plan.names.index(name)).cast(pa.large_binary()).cast(_TEXT)
            except pa.ArrowInvalid:
                return f"{name!r} has bytes that are no UTF-8, and is written as text"
            if pc.any(pc.match_substring(texts, "\0")).as_py():
                return f"{name!r} has a NUL character, and is written as text"
    return ""


def _limit_evidence(batch: pa.RecordBatch, plan: WritePlan) -> str:
    """Return which key or value is null or too long, as far as the frame shows it: of columns that Postgres does not
    convert. The promotion finds the others."""

    def joined(names: Sequence[str]) -> pa.Array | None:
        if any(name not in plan.names or plan.type_of(name) not in SAME_TEXT for name in names):
            return None
        texts = [batch.column(plan.names.index(name)).cast(_TEXT) for name in names]
        return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, pa.scalar(KEY_SEPARATOR, _TEXT))

    def longest(texts: pa.Array | None, column: str) -> int | None:
        if texts is None or plan.outbox[column].longest_chars is None:
            return None
        length: int | None = pc.max(pc.utf8_length(texts)).as_py()
        return length

    keys = joined(plan.records.key_columns)
    values = joined([plan.records.value]) if isinstance(plan.records.value, str) else None
    return fault(
        plan, 0 if keys is None else keys.null_count, longest(keys, "kafka_key"), longest(values, "kafka_value")
    )


def _nul_counts(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, int]:
    counts = {}
    for name, column in zip(names, batch.columns, strict=True):
        kind = column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            column, kind = column.flatten(), column.type.value_type  # noqa: PLW2901 - its elements
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            counts[name] = pc.sum(pc.match_substring(column, "\0")).as_py() or 0
    return counts


def copy_text(batch: pa.RecordBatch, *, partition: int, first_row: int) -> pa.Buffer:
    """Return a batch as lines of COPY's text format, each beginning with partition and row number.

    The batch must have rows.
    """
    rows = pa.array(range(first_row, first_row + batch.num_rows)).cast(_TEXT)
    fields = [pa.scalar(str(partition), _TEXT), rows, *map(_texts, batch.columns)]
    lines = pc.binary_join_element_wise(*fields, pa.scalar("\t", _TEXT))
    ended = pc.binary_join_element_wise(lines, pa.scalar("", _TEXT), pa.scalar("\n", _TEXT))
    _, offsets, text = ended.buffers()
    places = memoryview(offsets).cast("q")
    return text.slice(places[0], places[batch.num_rows] - places[0])


def _texts(column: pa.Array) -> pa.Array:
    """Return the values of a column as escaped text for COPY; a null is `\\N`."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))  # the instant is the same
    if pa.types.is_duration(kind):
        column = pa.array(map(_clock, column.cast(pa.duration("us")).cast(pa.int64()).to_pylist()), _TEXT)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        column = pa.array([_array(each) for each in _elements(column)], _TEXT)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        column = pa.array([None if each is None else "\\x" + each.hex() for each in column.to_pylist()], _TEXT)
    text = column.cast(_TEXT)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        for sign, escaped in _ESCAPES:
            text = pc.replace_substring(text, sign, escaped)
    return pc.fill_null(text, "\\N")


def _clock(microseconds: int | None) -> str | None:
    """Return a duration as `-26:03:04.500000`. Before Postgres 15 a number of microseconds had 32 bits."""
    if microseconds is None:
        return None
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    minutes, hours = seconds // 60 % 60, seconds // 3600
    return f"{'-' if microseconds < 0 else ''}{hours}:{minutes:02}:{seconds % 60:02}.{fraction:06}"


def _elements(column: pa.Array) -> Iterable[list[str | None] | None]:
    texts = column.flatten()
    if pa.types.is_timestamp(texts.type) and texts.type.tz is not None:
        texts = texts.cast(pa.timestamp("us", "UTC"))
    elements = iter(texts.cast(pa.string()).to_pylist())
    for length in pc.list_value_length(column).to_pylist():
        yield None if length is None else [next(elements) for _ in range(length)]


def _array(elements: list[str | None] | None) -> str | None:
    if elements is None:
        return None
    quoted = (
        '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' if each is not None else "NULL" for each in elements
    )
    return "{" + ",".join(quoted) + "}"
