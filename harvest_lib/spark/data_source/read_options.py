"""The options of `spark.read` and `spark.readStream` with the format `outbox`, checked before anything is read."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from harvest_lib.errors import ConfigError
from harvest_lib.postgres.table_names import is_no_table
from harvest_lib.spark.data_source.option_names import named
from harvest_lib.spark.data_source.pushed import Condition

if TYPE_CHECKING:
    import pyarrow as pa

DSN_VARIABLE = "HARVEST_DSN"

_BOTH = ("dsn", "password", "outbox", "shards", "topics", "columns")
_BATCH_ONLY = ("archive", "snapshot")
_STREAM_ONLY = ("maxRecordsPerBatch", "startingOffsets")
_MOST_SHARDS = 1_000
_SNAPSHOT = re.compile(r"[0-9]+:[0-9]+:([0-9]+(,[0-9]+)*)?@[0-9]+")
MOST_RECORDS = 10_000_000
"""The largest value of `maxRecordsPerBatch`."""
_STARTS = {"earliest": "beginning", "latest": "now"}
_ELSEWHERE = {
    "url": "dsn",
    "dbtable": "outbox",
    "table": "outbox",
    **dict.fromkeys(("subscribe", "topic"), "topics"),
    **dict.fromkeys(("maxoffsetspertrigger", "maxrecordspertrigger"), "maxRecordsPerBatch"),
}
"""Options of Spark's JDBC and Kafka sources, and the option here that is meant."""

COLUMNS = (
    "id",
    "transaction_id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
)
"""The columns of a read."""

_VALUE_TYPES: Mapping[str, DataType] = {"text": StringType(), "bytea": BinaryType()}


def _schema(value: DataType, chosen: Sequence[str]) -> StructType:
    kinds = {
        "id": LongType(),
        "transaction_id": LongType(),
        "create_time": TimestampType(),
        "kafka_topic": StringType(),
        "kafka_key": StringType(),
        "kafka_value": value,
        "kafka_header_keys": ArrayType(StringType()),
        "kafka_header_values": ArrayType(StringType()),
    }
    return StructType([StructField(name, kinds[name]) for name in chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, checked."""

    dsn: str = field(repr=False)
    """libpq conninfo or URL without a password. Default: the environment variable `HARVEST_DSN` of the driver."""
    password: str | None = field(default=None, repr=False)
    """Spark hides this option. Default: `PGPASSWORD` of the driver, else a password file on each machine that reads."""
    outbox: str = "outbox"
    """`table` or `schema.table`."""
    shards: int = 1
    """Number of partitions: per segment in a batch, by id; per micro-batch in a stream, by key."""
    topics: tuple[str, ...] = ()
    """The topics whose records are read. Default: all."""
    columns: tuple[str, ...] = COLUMNS
    """The columns to read, for Spark does not tell a source in Python which columns a query uses. Default: all."""
    archive: str | None = None
    """The URL of the outbox's archive, from which dropped segments are read. Default: none."""
    snapshot: str | None = None
    """The snapshot whose rows are read, `xmin:xmax:in,progress@system`. Default: a snapshot taken when planning."""
    max_records: int | None = None
    """`maxRecordsPerBatch`: the largest number of records in a micro-batch. Default: no limit."""
    starting: Literal["beginning", "now"] = "beginning"
    """`startingOffsets`: where a stream without a checkpoint starts."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> "ReadOptions":
        """Check the options and return them. Option names are case-insensitive. Raises ConfigError."""
        known, others = (_BOTH + _STREAM_ONLY, _BATCH_ONLY) if streaming else (_BOTH + _BATCH_ONLY, _STREAM_ONLY)
        given = named(options, known, others=others, streaming=streaming, elsewhere=_ELSEWHERE, what="outbox")
        most = given.get("maxRecordsPerBatch")
        starting = given.get("startingOffsets", "beginning")
        if starting not in ("beginning", "now"):
            raise no_start(starting, "use beginning or now")
        return cls(
            dsn=dsn_of(given),
            password=given.get("password") or os.environ.get("PGPASSWORD"),
            outbox=_table(given.get("outbox", "outbox")),
            archive=given.get("archive"),
            snapshot=_snapshot(given.get("snapshot")),
            shards=positive_number("shards", given.get("shards", "1"), _MOST_SHARDS),
            topics=_names("topics", given.get("topics")),
            columns=_columns(given.get("columns")),
            max_records=None if most is None else positive_number("maxRecordsPerBatch", most, MOST_RECORDS),
            starting=starting,  # type: ignore[arg-type]  # it is one of the two
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The condition on the topic, if topics are named."""
        return (Condition("kafka_topic", "in", self.topics),) if self.topics else ()

    @property
    def conninfo(self) -> str:
        """The connection string for driver and tasks."""
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - callers that connect have loaded it

        return make_conninfo(self.dsn, password=self.password) if self.password else self.dsn


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema of a read: the columns of the option `columns`; values are binary where the outbox has bytes,
    else strings.

    Raises ConfigError, OutboxTableError or DatabaseError.
    """
    # psycopg is needed on the driver alone, and only here.
    from harvest_lib.spark.data_source.outbox_rows import value_type  # noqa: PLC0415

    needed = ("dsn", "password", "outbox", "columns")
    given = ReadOptions.parse(
        {name: value for name, value in options.items() if name.lower() in needed}, streaming=False
    )
    return _schema(_VALUE_TYPES[value_type(given)], given.columns)


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Return the Arrow schema of a schema of this package, as Spark expects it: times are microseconds in UTC.

    Spark's own function is no public API, and its parameters differ between Spark 4.1 and 4.2.
    """
    import pyarrow as pa  # noqa: PLC0415 - a plan does not need it

    kinds: dict[type[DataType], pa.DataType] = {
        IntegerType: pa.int32(),
        LongType: pa.int64(),
        TimestampType: pa.timestamp("us", "UTC"),
        StringType: pa.string(),
        BinaryType: pa.binary(),
    }

    def kind(of: DataType) -> pa.DataType:
        if isinstance(of, ArrayType):
            return pa.list_(pa.field("element", kind(of.elementType), nullable=of.containsNull))
        if isinstance(of, StructType):
            return pa.struct([pa.field(each.name, kind(each.dataType), nullable=each.nullable) for each in of])
        return kinds[type(of)]

    return pa.schema([pa.field(each.name, kind(each.dataType), nullable=each.nullable) for each in schema])


def check_schema(schema: StructType, columns: Sequence[str]) -> None:
    """Raise ConfigError unless a schema is a result of `read_schema` with these columns."""
    found = schema.simpleString()
    if found in [_schema(value, columns).simpleString() for value in _VALUE_TYPES.values()]:
        return
    raise ConfigError(
        f"the format outbox does not read as {found}",
        field="schema",
        next_step="leave the schema out, and name columns by the option columns",
    )


def dsn_of(given: Mapping[str, str]) -> str:
    """Return the DSN in the options, else in the environment. Raises ConfigError if there is no DSN, or if the DSN has
    a password."""
    # psycopg is needed on the driver alone: executors get options that were checked.
    from harvest_lib.spark.data_source.write_options import options_named, without_password  # noqa: PLC0415

    text = given.get("dsn") or os.environ.get(DSN_VARIABLE, "")
    if not text:
        raise ConfigError("no database was named", field="dsn", next_step=f"set it, or {DSN_VARIABLE}")
    with options_named():
        return without_password(text)


def no_start(given: str, next_step: str) -> ConfigError:
    """Return the error for a value of `startingOffsets`. The next step names the value for Kafka's word."""
    meant = _STARTS.get(given.lower())
    return ConfigError(
        f"a stream cannot start at {given[:80]!r}",
        field="startingOffsets",
        next_step=f"write {meant}" if meant else next_step,
    )


def _table(text: str) -> str:
    if is_no_table(text):
        raise ConfigError(f"{text!r} cannot name a table", field="outbox", next_step="use table or schema.table")
    return text


def _snapshot(text: str | None) -> str | None:
    if text is not None and not _SNAPSHOT.fullmatch(text):
        raise ConfigError(
            f"{text[:80]!r} is no snapshot with the server that it is of",
            field="snapshot",
            next_step="give it as `harvest subscriptions list` shows it: xmin:xmax:in,progress@system",
        )
    return text


def _names(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    found = tuple(each.strip() for each in text.split(","))
    if not all(found) or len(set(found)) < len(found) or "\0" in text:
        raise ConfigError(
            f"{text[:80]!r} is no list of different names", field=option, next_step="separate the names by commas"
        )
    return found


def _columns(text: str | None) -> tuple[str, ...]:
    found = _names("columns", text) or COLUMNS
    if others := [each for each in found if each not in COLUMNS]:
        raise ConfigError(f"a read has no column {others[0]!r}", field="columns", next_step=f"use {', '.join(COLUMNS)}")
    return found


def positive_number(name: str, text: str, most: int) -> int:
    """Return the number in an option. Raises ConfigError unless it is from 1 to `most`."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise ConfigError(f"{text!r} is no number from 1 to {most}", field=name, next_step="correct the option")
    return int(text)
