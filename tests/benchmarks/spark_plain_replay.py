"""The floor of a replay: Spark reads the outbox by JDBC and writes it by its Kafka sink, at least once and in no order.
`python -m … TOPIC`."""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as F

from harvest_lib.spark.session import jdbc_jars, spark_session
from harvest_lib.spark.sink.database import Tables, connect, jdbc_target
from tests.benchmarks.backlog import PARTITIONS

_ENDS = "SELECT min(id), max(id) FROM outbox"


def main() -> None:
    """Write every record of the outbox to the topic."""
    with connect(os.environ["HARVEST_DSN"]) as connection:
        table = Tables.named(business=None, outbox="outbox").outbox
        target = jdbc_target(connection, Tables(business=None, outbox=table, staging=table, ledger=table))
        ends = connection.execute(_ENDS).fetchone()
    assert ends is not None
    with (
        tempfile.TemporaryDirectory(prefix="plain-", ignore_cleanup_errors=True) as folder,
        spark_session(jars=jdbc_jars(None), work_folder=Path(folder), is_long=True) as spark,
    ):
        rows = spark.read.jdbc(
            target.url,
            target.table,
            column="id",
            lowerBound=ends[0],
            upperBound=ends[1],
            numPartitions=PARTITIONS,
            properties={**target.properties, "fetchsize": "5000"},
        )
        records = rows.select(F.col("kafka_key").alias("key"), F.col("kafka_value").alias("value"))
        writer = records.write.format("kafka").option(
            "kafka.bootstrap.servers", os.environ["HARVEST_BOOTSTRAP_SERVERS"]
        )
        writer.option("topic", sys.argv[1]).option("kafka.compression.type", "lz4").save()


if __name__ == "__main__":
    main()
