"""The columns of the staging table, and the writing of a batch into it by Spark's JDBC writer.

The writer commits once per partition. After a lost acknowledgement, a retry or a speculative copy, the table has the
same rows more than once, each time under another attempt. Promotion takes one attempt per partition.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from harvest_lib.errors import ConfigError, DatabaseError
from harvest_lib.spark.errors import SourceError
from harvest_lib.spark.sink.content import column, row_hash
from harvest_lib.spark.sink.database import JdbcTarget
from harvest_lib.spark.sink.staging_tables import writer_name

BOOKKEEPING = {
    "batch": "text",
    "run": "uuid",
    "partition": "integer",
    "attempt": "xid8",
    "row": "bigint",
    "row_hash": "bigint",
}
_SYSTEM_COLUMNS = frozenset({"tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"})
"""Names that a column of a table in Postgres cannot have."""
_TYPES: Mapping[type[spark.DataType], str] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "smallint",
    spark.ShortType: "smallint",
    spark.IntegerType: "integer",
    spark.LongType: "bigint",
    spark.FloatType: "real",
    spark.DoubleType: "double precision",
    spark.DecimalType: "numeric",
    spark.StringType: "text",
    spark.VarcharType: "text",
    spark.CharType: "text",
    spark.BinaryType: "bytea",
    spark.DateType: "date",
    spark.TimestampType: "timestamp with time zone",
    spark.TimestampNTZType: "timestamp without time zone",
}
_BY_COPY: Mapping[type[spark.DataType], str] = {
    spark.NullType: "text",
    spark.DayTimeIntervalType: "interval",
}
"""Further types, which Spark's JDBC writer does not take."""
_TIMES = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)
_LONGEST_NAME_BYTES = 63
_MOST_COLUMNS = 1600 - len(BOOKKEEPING)
_SERVER_SENTENCE = re.compile(r"(?:ERROR|FATAL): [^\n]+")
_CONDITION = re.compile(r"\[([A-Z]+_[A-Z_]+(?:\.[A-Z_]+)*)\]")
_EXCEPTION = re.compile(r"\b(?:[a-z]\w*\.)+\w*(?:Exception|Error)\b(?:: org\.postgresql\.Driver)?")
_LONGEST_EVIDENCE = 300


Content = Literal["column", "json", "headers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedColumn:
    """A column of the frame: its name, the name it has in the staging table, and its type in Postgres.

    `content` is "json" for maps, structs, variants and arrays of them, which are staged as the text of a JSON value. It
    is "headers" for the records' headers, which are staged as an array in which names and texts alternate.
    """

    name: str
    staged: str
    type: str
    content: Content = "column"


def staged_columns(
    schema: spark.StructType, *, by_copy: bool = False, headers_column: str | None = None
) -> tuple[StagedColumn, ...]:
    """Return the staging table's columns for a frame. Raises ConfigError for a name or a type that cannot be staged.

    `by_copy` stands for tasks that write with COPY, which take more types than Spark's JDBC writer.
    """
    if len(schema.fields) > _MOST_COLUMNS:
        raise ConfigError(
            f"the frame has {len(schema.fields)} columns; a staging table in Postgres takes {_MOST_COLUMNS}",
            next_step="combine columns with to_json(struct(...)), or leave some out",
        )
    seen: set[str] = set()
    given = {each.name.lower() for each in schema.fields}
    columns = []
    for each in schema.fields:
        if each.name.lower() in seen:
            raise ConfigError(
                f"the frame has two columns {each.name!r}",
                field=each.name,
                next_step="rename one of them: column names are case-insensitive in Spark's JDBC writer",
            )
        seen.add(each.name.lower())
        staged = _staged(each.name, given)
        if not each.name or len(staged.encode()) > _LONGEST_NAME_BYTES or "\0" in staged or '"' in staged:
            raise ConfigError(
                f"{each.name!r} cannot name a column in Postgres",
                field=each.name,
                next_step=f"rename it: at most {_LONGEST_NAME_BYTES} bytes, no double quotes",
            )
        content: Content = "headers" if each.name == headers_column else "column"
        if by_copy and content == "column" and _is_nested(each.dataType):
            content = "json"
        kind = _type_of(each, by_copy=by_copy) if content == "column" else _checked(each, content, by_copy=by_copy)
        columns.append(StagedColumn(name=each.name, staged=staged, type=kind, content=content))
    return tuple(columns)


def _staged(name: str, given: Collection[str]) -> str:
    """Return a column's name in the staging table. No bookkeeping, system or other frame column has the same name."""
    if name.lower() not in BOOKKEEPING and name not in _SYSTEM_COLUMNS:
        return name
    staged = f"{name} (frame)"
    while staged.lower() in given:
        staged += "_"
    return staged


def _is_nested(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.ArrayType):
        return type(kind.elementType) not in _TYPES
    return isinstance(kind, spark.MapType | spark.StructType | spark.VariantType)


def _type_of(each: spark.StructField, *, by_copy: bool) -> str:
    kind, suffix = each.dataType, ""
    if isinstance(kind, spark.ArrayType):
        kind, suffix = kind.elementType, "[]"
    found = _TYPES.get(type(kind)) or (_BY_COPY.get(type(kind)) if by_copy and not suffix else None)
    if found is None or (suffix and found == "bytea"):
        raise _untaken(each, by_copy=by_copy)
    return found + suffix


def _checked(each: spark.StructField, content: Content, *, by_copy: bool) -> str:
    """Return the type in the staging table of headers, or of a value that is staged as JSON."""
    if content == "json":
        if not _is_json(each.dataType):
            raise _untaken(each, by_copy=by_copy)
        return "text"
    if not by_copy:
        raise ConfigError(
            f"the headers' column {each.name!r} cannot be written by JDBC or through the driver",
            field="--headers-column",
            next_step='write the frame by format("outbox")',
        )
    if not _is_headers(each.dataType):
        raise ConfigError(
            f"the headers' column {each.name!r} is of type {each.dataType.simpleString()}",
            field="--headers-column",
            next_step="make it map<string,string>, or as Kafka's source has it array<struct<key:string,value:binary>>",
        )
    return "text[]"


def _is_json(kind: spark.DataType) -> bool:
    match kind:
        case spark.ArrayType():
            return _is_json(kind.elementType)
        case spark.MapType():
            return not _is_nested(kind.keyType) and _is_json(kind.keyType) and _is_json(kind.valueType)
        case spark.StructType():
            names = [each.name for each in kind.fields]
            return len({*names}) == len(names) and all(_is_json(each.dataType) for each in kind.fields)
        case spark.VariantType() | spark.NullType():
            return True
    return type(kind) in _TYPES and not isinstance(kind, spark.BinaryType)


def _is_headers(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.MapType):
        name, text = kind.keyType, kind.valueType
    elif isinstance(kind, spark.ArrayType) and isinstance(kind.elementType, spark.StructType):
        fields = kind.elementType.fields
        if [each.name for each in fields] != ["key", "value"]:
            return False
        name, text = fields[0].dataType, fields[1].dataType
    else:
        return False
    return isinstance(name, spark.StringType) and isinstance(text, spark.StringType | spark.BinaryType)


def _untaken(each: spark.StructField, *, by_copy: bool) -> ConfigError:
    kind = each.dataType.simpleString()
    if by_copy:
        return ConfigError(
            f"the frame's column {each.name!r} is of type {kind}, which has no place in an outbox",
            field=each.name,
            next_step="cast it to a string in the frame (bytes by base64 or hex), or leave it out",
        )
    return ConfigError(
        f"the frame's column {each.name!r} is of type {kind}, which JDBC cannot carry",
        field=each.name,
        next_step='write the frame by format("outbox"), make the column text with to_json, or leave it out',
    )


def stage(frame: DataFrame, *, batch: str, run: str, target: JdbcTarget, by_options: bool) -> None:
    """Append the frame to the staging table under the batch and the run. Raises DatabaseError.

    With `by_options` batch and run are settings of the tasks' sessions, which the table's defaults read. Without
    `by_options` each row carries both values, and staging takes a fifth longer.
    """
    names = {"batch": batch, "run": run}
    # If the rows are literals in the query, Spark's optimizer would compute all of them as partition 0, and still write
    # several partitions. Later partitions would then look like copies of partition 0. An observation hides the literals
    # from the optimizer.
    observed = frame.observe(f"staging of {run}", F.count(F.lit(1)).alias("rows"))
    rows = observed.select(
        *([] if by_options else [F.lit(value).alias(name) for name, value in names.items()]),
        F.spark_partition_id().alias("partition"),
        # The upper bits are the partition; the lower 33 bits number its rows.
        F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1)).alias("row"),
        row_hash(frame.columns).alias("row_hash"),
        *[
            _carried(field).alias(each.staged)
            for field, each in zip(frame.schema.fields, staged_columns(frame.schema), strict=True)
        ],
    )
    properties = dict(target.properties) | {"ApplicationName": writer_name(batch, staging_oid=target.oid)}
    if by_options:
        properties["options"] = " ".join(f"-c outbox_sink.{name}={_option(value)}" for name, value in names.items())
    try:
        rows.write.jdbc(target.url, target.table, mode="append", properties=properties)
    except (PySparkException, Py4JError) as error:
        raise DatabaseError(
            f"Spark could not write batch {batch} to the staging table {target.table}",
            evidence=sentence_of(error),
            next_step=next_step_of(error),
        ) from error


def _carried(field: spark.StructField) -> Column:
    """Return the column as JDBC sends it: dates and times as text, and text without a collation.

    Java's types for dates and times lack the hour that summer time skips and ten days of 1582, and they convert times
    long ago by the local mean time of the driver's zone. Postgres reads the text unchanged.
    """
    kind, values = field.dataType, column(field.name)
    if isinstance(kind, spark.ArrayType) and isinstance(kind.elementType, _TIMES):
        element = kind.elementType
        texts = F.transform(values, lambda each: _time_text(element, each))
        return F.concat(F.lit("{"), F.array_join(texts, ",", "NULL"), F.lit("}"))
    if isinstance(kind, _TIMES):
        return _time_text(kind, values)
    if isinstance(kind, spark.ArrayType) and isinstance(kind.elementType, spark.StringType):
        return values.cast(spark.ArrayType(spark.StringType(), kind.containsNull))
    return values.cast(spark.StringType()) if isinstance(kind, spark.StringType) else values


def _time_text(kind: spark.DataType, values: Column) -> Column:
    if isinstance(kind, spark.TimestampType):  # the text of an instant would be in the session's zone
        since = F.lit("1970-01-01").cast("timestamp_ntz")
        return F.concat(
            _time_text(spark.TimestampNTZType(), F.timestamp_add("MICROSECOND", F.unix_micros(values), since)),
            F.lit("Z"),
        )
    return F.ltrim(values.cast("string"), F.lit("+"))  # Spark puts a plus sign before years of five digits


@contextmanager
def computing(batch: str) -> Iterator[None]:
    """Raise SourceError if Spark cannot compute the frame of a batch within the block."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SourceError(
            f"Spark could not compute the frame of batch {batch}",
            evidence=sentence_of(error),
            next_step="correct what the message names; nothing was written",
        ) from error


def next_step_of(error: Exception) -> str:
    """Return the next step for an error. Spark's own message for a missing JDBC driver names only a class."""
    if "ClassNotFoundException: org.postgresql.Driver" in str(error):
        return "start Spark with spark.jars.packages=org.postgresql:postgresql:42.7.11: nothing was promoted"
    return "correct what the message names and run the batch again: nothing of it was promoted"


def _option(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def sentence_of(error: Exception) -> str:
    """Return the server's message, else the name of Spark's error: Spark's full text may contain data of a row."""
    message = str(error)
    if (said := _SERVER_SENTENCE.search(message)) is not None:
        return said.group()
    if isinstance(error, AnalysisException):  # before any row was read
        return message.strip().split("\n")[0][:_LONGEST_EVIDENCE]
    names = [f"[{name}]" for name in _CONDITION.findall(message)] or _EXCEPTION.findall(message)
    return f"{names[-1]}; Spark's log has the details" if names else type(error).__name__
