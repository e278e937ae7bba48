"""A driver with executors of their own: `cluster_driver.py write|stream|read <folder>`, with the DSN in CLUSTER_DSN.

Rows it reads go to `<folder>/read.json`. Each Python worker that has rows in its hands says so by a file
`<folder>/working/<its pid>`.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from support.outbox_format import FileStream, target, write

from harvest_lib.spark.data_source import register

ROWS = 2_000


class _Database:
    def __init__(self, dsn):
        self.dsn = dsn


def slowly(folder):
    """Return what `mapInArrow` takes: rows that come a few at a time."""

    def rows(batches):
        import os  # noqa: PLC0415 - runs in the worker
        import time  # noqa: PLC0415

        for batch in batches:
            yield batch
            with open(f"{folder}/working/{os.getpid()}", "w"):  # noqa: PTH123 - pathlib would be loaded in each worker
                time.sleep(0.05)

    return rows


def main(what, folder):
    folder, dsn = Path(folder), os.environ["CLUSTER_DSN"]
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    if what == "write":
        frame = spark.range(0, ROWS, 1, 8).selectExpr("concat('c', id % 7) AS customer", "CAST(id AS int) AS n")
        write(frame.mapInArrow(slowly(folder), frame.schema), dsn, orderBy="n")
    elif what == "stream":
        stream = FileStream(spark, _Database(dsn), folder)
        for number in range(4):
            stream.add(number * ROWS // 40, ROWS // 4)
        frame = stream.frame().repartition(4)
        stream.run(frame.mapInArrow(slowly(folder), frame.schema))
    else:
        options = target(dsn)
        frame = spark.read.format("outbox").options(dsn=options["dsn"], password=options["password"], shards=8).load()
        found = frame.select("id", "kafka_value").mapInArrow(slowly(folder), "id bigint, kafka_value string").collect()
        (folder / "read.json").write_text(json.dumps([[row.id, row.kafka_value] for row in found]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
