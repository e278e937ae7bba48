"""The wheel in an environment of its own: Spark finds `format("outbox")` there without `spark.dataSource.register`."""

import os
import re
import subprocess

import psycopg
import pytest
from support.installed import build, find_uv, install
from support.outbox_format import ROOT, target

from harvest_lib.local_stack.jars import TESTED_SPARK
from harvest_lib.local_stack.java import find_java

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(600)]  # the first use of uv may download

LOCKED = "4.1"
PAGE = (ROOT / "docs" / "spark-write.md").read_text(encoding="utf-8")
FIRST = re.search(r"^```sql\n(.*?)^```.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
READ_AND_STREAM = """
import os, sys
from pyspark.sql import SparkSession
from harvest_lib.spark.data_source import register

spark = SparkSession.builder.getOrCreate()
where = {"dsn": os.environ["HARVEST_DSN"], "password": os.environ["PGPASSWORD"]}
stream = spark.readStream.format("outbox").options(**where).load().select("kafka_key", "kafka_value")
into = {"stream": "copied", "topic": "copies", "key": "kafka_key", "value": "kafka_value"}
query = stream.writeStream.format("outbox").options(**where, **into).option("checkpointLocation", sys.argv[1])
query.trigger(availableNow=True).start().awaitTermination()
register(spark)
print(sorted(row.kafka_topic for row in spark.read.format("outbox").options(**where).load().collect()))
"""
NEIGHBOUR = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield (7,)

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "neighbour"

    def schema(self):
        return "number int"

    def reader(self, schema):
        return Reader()
"""
NEIGHBOURS_ROWS = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print([row.number for row in spark.read.format("neighbour").load().collect()])
"""


LINES = [pytest.param(line, marks=[] if line == LOCKED else pytest.mark.long) for line in TESTED_SPARK]


@pytest.fixture(scope="module", params=LINES)
def venv(request, parts, tmp_path_factory):
    """The environment of a line of Spark."""
    uv, made = find_uv(parts), tmp_path_factory.mktemp("venv")
    install(uv, build(uv, tmp_path_factory.mktemp("wheel")), made, "spark")
    if request.param != LOCKED:
        wanted = f"pyspark=={request.param}.*"
        subprocess.run([uv, "pip", "install", "--quiet", "--python", made / "bin" / "python", wanted], check=True)
    return made


@pytest.fixture
def run(venv, parts, dsn, tmp_path):
    """Run words in the environment, as after `activate`; return what they print."""
    options = target(dsn)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTHON"))}
    environment = kept | {
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "JAVA_HOME": str(find_java(parts)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HARVEST_DSN": options["dsn"],
        "PGPASSWORD": options["password"],
    }

    def program(*words, **variables):
        done = subprocess.run(
            words, cwd=tmp_path, env=environment | variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
        return done.stdout

    return program


def test_the_first_example_runs_as_it_is_pasted_and_a_stream_reads_and_writes(run, dsn, tmp_path):
    table, program = FIRST.groups()
    run("harvest", "init")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(table)
        for _ in range(2):
            run("python", "-c", program)
        found = connection.execute("SELECT order_id, customer_id, amount::text FROM orders ORDER BY 1").fetchall()
    assert found == [(1, "anna", "9.90"), (2, "ben", "5.00")]
    assert (
        run("python", "-c", READ_AND_STREAM, str(tmp_path / "checkpoint"))
        == str(["copies"] * 2 + ["orders"] * 2) + "\n"
    )


@pytest.mark.parametrize("ours", ["whole", "broken"])
def test_the_sources_of_others_are_found_beside_ours_even_if_ours_is_broken(run, tmp_path, ours):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "pyspark_neighbour.py").write_text(NEIGHBOUR)
    if ours == "broken":
        (tmp_path / "path" / "harvest_lib.py").write_text("raise RuntimeError('half of an installation')\n")
    assert run("python", "-c", NEIGHBOURS_ROWS, PYTHONPATH=str(tmp_path / "path")) == "[7]\n"
