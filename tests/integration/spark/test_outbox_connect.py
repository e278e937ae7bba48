"""The outbox and the topics, read by way of Spark Connect: a client that has no Java of its own."""

import json
import os
import subprocess
import sys

import pytest
from support.native import Native
from support.outbox_source import without_password
from support.spark import all_jars, java_named

pytestmark = [pytest.mark.full, pytest.mark.spark]

_CLIENT = """
import json
import sys

from pyspark.sql import SparkSession

from spark_jobs.data_source import OutboxDataSource
from spark_jobs.data_source.harvested import harvested

dsn, folder, jars, servers, topic = sys.argv[1:]
settings = {
    "spark.jars": jars,
    "spark.local.dir": folder,
    "spark.sql.warehouse.dir": folder + "/warehouse",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
spark = SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()
assert "connect" in type(spark).__module__
spark.dataSource.register(OutboxDataSource)


def ids(frame):
    return sorted(row.id for row in frame.select("id").collect())


found = {"batch": ids(spark.read.format("outbox").options(dsn=dsn, shards="2").load()), "stream": []}
for _ in range(3):
    stream = spark.readStream.format("outbox").options(dsn=dsn, maxRecordsPerBatch="10").load()
    query = stream.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    query = query.trigger(availableNow=True).start(folder + "/rows")
    query.awaitTermination()
    found["stream"].append(ids(spark.read.parquet(folder + "/rows")))
try:
    spark.read.format("outbox").options(dsn=dsn, shards="none").load().collect()
except Exception as error:
    found["refusal"] = str(error)
found["harvested"] = harvested(spark, [topic], kafka={"bootstrap.servers": servers}).count()
spark.stop()
print(json.dumps(found))
"""


def test_outbox_and_topics_are_read_by_way_of_connect(dsn, tmp_path, bootstrap_servers, make_topic):
    native = Native(without_password(dsn, tmp_path), size=10, ahead=3)
    native.write(25)
    with java_named():
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        jars = ",".join(map(str, all_jars()))
        command = [sys.executable, "-c", _CLIENT, native.dsn, str(tmp_path), jars, bootstrap_servers, make_topic()]
        ended = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
        )
    native.connection.close()
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["batch"] == list(range(1, 26))
    assert found["stream"] == [list(range(1, 11)), list(range(1, 21)), list(range(1, 26))]
    assert "'none' is no number from 1 to" in found["refusal"]
    assert found["harvested"] == 0
