"""A batch into the staging table, by Spark's JDBC writer.

The writer commits once per partition: after a lost acknowledgement, a retry or a speculative copy the same rows stand
there more than once, each time under another attempt. Promotion takes one attempt of each.
"""

import re

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib.errors import DatabaseError
from spark_jobs.sink.content import column, row_hash
from spark_jobs.sink.database import JdbcTarget
from spark_jobs.sink.plan import staged_columns
from spark_jobs.sink.staging_tables import writer_name

_SERVER_SENTENCE = re.compile(r"(?:ERROR|FATAL): [^\n]+")
_CONDITION = re.compile(r"\[([A-Z]+_[A-Z_]+(?:\.[A-Z_]+)*)\]")
_EXCEPTION = re.compile(r"\b(?:[a-z]\w*\.)+\w*(?:Exception|Error)\b(?:: org\.postgresql\.Driver)?")
_LONGEST_EVIDENCE = 300


def stage(frame: DataFrame, *, batch: str, run: str, target: JdbcTarget) -> None:
    """Append the frame to the staging table under the batch and the run. Raises DatabaseError."""
    rows = frame.select(
        F.spark_partition_id().alias("partition"),
        # The partition stands in the upper bits: what is left counts the rows of one partition.
        F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1)).alias("row"),
        row_hash(frame.columns).alias("row_hash"),
        *[column(each.name).alias(each.staged) for each in staged_columns(frame.schema)],
    )
    settings = {"batch": batch, "run": run}
    properties = dict(target.properties) | {
        "ApplicationName": writer_name(batch, staging_oid=target.oid),
        "options": " ".join(f"-c outbox_sink.{name}={_option(value)}" for name, value in settings.items()),
    }
    try:
        rows.write.jdbc(target.url, target.table, mode="append", properties=properties)
    except (PySparkException, Py4JError) as error:
        raise DatabaseError(
            f"Spark could not write batch {batch} to the staging table {target.table}",
            evidence=sentence_of(error),
            next_step="correct what the message names and run the batch again: nothing of it was promoted",
        ) from error


def _option(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def sentence_of(error: Exception) -> str:
    """Return what the server said, else what Spark calls the error: its other words may be those of a row."""
    message = str(error)
    if (said := _SERVER_SENTENCE.search(message)) is not None:
        return said.group()
    if isinstance(error, AnalysisException):  # before any row was read
        return message.strip().split("\n")[0][:_LONGEST_EVIDENCE]
    names = [f"[{name}]" for name in _CONDITION.findall(message)] or _EXCEPTION.findall(message)
    return f"{names[-1]}; Spark's log says more" if names else type(error).__name__
