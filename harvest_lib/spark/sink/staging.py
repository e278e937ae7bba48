"""The writing of a batch into the staging table by Spark's JDBC writer.

The writer commits once per partition. After a lost acknowledgement, a retry or a speculative copy, the table has the
same rows more than once, each time under another attempt. Promotion takes one attempt per partition.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from harvest_lib.errors import DatabaseError
from harvest_lib.spark.errors import SourceError
from harvest_lib.spark.raised import SPARK_ERRORS
from harvest_lib.spark.sink.columns import staged_columns
from harvest_lib.spark.sink.content import column, row_hash
from harvest_lib.spark.sink.database import JdbcTarget
from harvest_lib.spark.sink.staging_tables import writer_name

_TIMES = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)
_SERVER_SENTENCE = re.compile(r"(?:ERROR|FATAL): [^\n]+")
_CONDITION = re.compile(r"\[([A-Z]+_[A-Z_]+(?:\.[A-Z_]+)*)\]")
_EXCEPTION = re.compile(r"\b(?:[a-z]\w*\.)+\w*(?:Exception|Error)\b(?:: org\.postgresql\.Driver)?")
_LONGEST_EVIDENCE = 300


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
    except SPARK_ERRORS as error:
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
    except SPARK_ERRORS as error:
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
