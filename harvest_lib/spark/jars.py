"""The jars that the jobs need: `export HARVEST_SPARK_JARS=$(python -m harvest_lib.spark.jars)`.

The Postgres JDBC driver and Spark's Kafka source for the installed Spark, with all they need. They are downloaded once
from Maven Central, or from the repository that HARVEST_MAVEN_URL names, into the cache of downloads that `harvest up`
uses too (HARVEST_CACHE).
"""

import argparse
import sys

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve, spark_kafka_jars
from harvest_lib.local_stack.state import default_state
from harvest_lib.spark.tested import require_tested

COMMAND = "export HARVEST_SPARK_JARS=$(python -m harvest_lib.spark.jars)"


def main(arguments: list[str] | None = None) -> int:
    """Print the paths of the jars, separated by commas. Return 0, or the error's exit code if a download fails."""
    parser = argparse.ArgumentParser(prog="python -m harvest_lib.spark.jars", description=__doc__)
    parser.add_argument(
        "--spark-version", help="version of Spark's Kafka source (default: the one that is tested with this Spark)"
    )
    spark = parser.parse_args(arguments).spark_version
    state = default_state()
    try:
        kafka = spark_kafka_jars(spark)
        require_tested(kafka.coordinates[0].rpartition(":")[2])
        found = [jar for jars in (POSTGRES_JDBC, kafka) for jar in resolve(jars, state)]
    except HarvestError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(",".join(map(str, found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
