"""The floor of an audit by Spark: start Spark, read a topic by Kafka's source, count. `python -m … TOPIC`."""

import os
import sys
import tempfile
from pathlib import Path

from harvest_lib.spark.audit.kafka_side import SparkTopics
from harvest_lib.spark.session import jdbc_jars, spark_session


def main() -> None:
    """Print how many messages the topic has."""
    source = SparkTopics({"bootstrap.servers": os.environ["HARVEST_BOOTSTRAP_SERVERS"]}, sys.argv[1:])
    with (
        tempfile.TemporaryDirectory(prefix="count-", ignore_cleanup_errors=True) as folder,
        spark_session(jars=jdbc_jars(None), work_folder=Path(folder), is_long=True) as spark,
    ):
        sys.stdout.write(f"{source.raw(spark, source.logs(), parts=2).count()}\n")


if __name__ == "__main__":
    main()
