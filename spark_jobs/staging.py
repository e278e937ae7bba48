"""A batch into the staging table, by Spark's JDBC writer.

The writer commits once per partition: after a lost acknowledgement, a retry or a speculative copy the same rows stand
there more than once, each time under another attempt. Promotion takes one attempt of each.
"""

import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib.errors import DatabaseError
from spark_jobs.database import JdbcTarget
from spark_jobs.source import FLIGHT_COLUMNS, row_hash

_SERVER_SENTENCE = re.compile(r"(?:ERROR|FATAL): [^\n]+")
_LONGEST_EVIDENCE = 300


def stage(flights: DataFrame, *, batch: str, run: str, target: JdbcTarget) -> None:
    """Append the flights to the staging table under the batch and the run. Raises DatabaseError."""
    rows = flights.select(
        F.lit(batch).alias("batch"),
        F.lit(run).alias("run"),
        F.spark_partition_id().alias("partition"),
        # The partition stands in the upper bits: what is left counts the rows of one partition.
        F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1)).alias("row"),
        row_hash().alias("row_hash"),
        *FLIGHT_COLUMNS,
    )
    try:
        rows.write.jdbc(target.url, target.table, mode="append", properties=dict(target.properties))
    except (PySparkException, Py4JError) as error:
        raise DatabaseError(
            f"Spark could not write batch {batch} to the staging table {target.table}",
            evidence=_sentence_of(str(error)),
            next_step="correct what the message names and run the batch again: nothing of it was promoted",
        ) from error


def _sentence_of(message: str) -> str:
    said = _SERVER_SENTENCE.search(message)
    return said.group() if said else message.strip().split("\n")[0][:_LONGEST_EVIDENCE]
