"""Writes by `format("outbox")`, and Spark behind Connect: a server of its own, of which the tests are a client."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.spark import all_jars, java_named, session

from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import BatchId, Fixed

ROOT = Path(__file__).parents[2]
CAPTURES_LOGS = not pyspark.__version__.startswith("4.0.")
"""Whether this Spark can capture log lines of Python workers."""
_LISTENS = re.compile(r"started at: \S*:(\d+)\s")


def environment():
    """Return the environment of a Spark of its own, whose workers find these tests."""
    return os.environ | {
        "JAVA_HOME": str(find_java(default_state())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'harvest_lib' / 'spark' / 'lookup'}",
    }


@contextmanager
def connect_server(folder):
    """Start a server of Spark Connect and return its address. A task may fail three times."""
    settings = {
        "spark.master": "local[2,4]",
        "spark.jars": ",".join(map(str, all_jars())),
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = folder / "server.log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=folder, env=environment(), stdout=output, stderr=output) as server,
    ):
        try:
            while (port := _LISTENS.search(log.read_text())) is None:
                assert server.poll() is None, log.read_text()[-3_000:]
            yield f"sc://127.0.0.1:{port.group(1)}"
        finally:
            server.kill()  # all that it has is in the folder


@contextmanager
def connected(folder):
    """Return a session with a server of Spark Connect of its own."""
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415 - not beside a classic session, elsewhere

    with connect_server(folder) as address:
        session = SparkSession.builder.remote(address).getOrCreate()
        yield session
        session.stop()


@contextmanager
def either(request, tmp_path_factory):
    """Start Spark by the way that the parameter of a fixture names, classic or connect; it knows the data source."""
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as held:
        if request.param == "connect":
            held.enter_context(java_named())
            made = held.enter_context(connected(folder))
        else:
            made = held.enter_context(session(folder))
        register(made)
        yield made


def target(dsn, **options):
    """Return the options of a write into the database of a test."""
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", "")
    return {"dsn": make_conninfo(**parts), "password": password, "topic": "orders", "key": "customer"} | options


def hundred_orders(spark):
    """Return a frame: a hundred orders of seven customers in four partitions, in no order."""
    return spark.range(0, 100, 1, 4).selectExpr(
        "concat('c', id % 7) AS customer", "CAST((id * 37) % 100 AS INT) AS place", "concat('order ', id) AS text"
    )


def write(frame, dsn, batch="b", **options):
    """Write a frame as a batch."""
    frame.write.format("outbox").options(**target(dsn, batchId=batch, **options)).mode("append").save()


def options_of(records):
    """Return the options of a write that declare the same records."""
    headers = records.headers.items()
    options = {
        "topic": records.topic,
        "key": json.dumps(list(records.key_columns)),
        "orderBy": json.dumps(list(records.order_by)),
        "headers": json.dumps({name: each for name, each in headers if isinstance(each, str)}),
        "fixedHeaders": json.dumps({name: each.text for name, each in headers if isinstance(each, Fixed)}),
        "batchHeader": "".join(name for name, each in headers if isinstance(each, BatchId)),
    }
    return options | ({} if records.value is None else {"value": json.dumps(list(records.value_columns([])))})


def failing_once(folder, partitions_fail=2):
    """Return what `mapInArrow` takes: in some partitions the first attempt fails after its rows."""

    def once(batches):
        import os  # noqa: PLC0415 - runs in the worker

        from pyspark import TaskContext  # noqa: PLC0415

        yield from batches
        partition = TaskContext.get().partitionId()
        if partition < partitions_fail:
            try:
                os.close(os.open(f"{folder}/failed-{partition}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            raise RuntimeError("a fault made on purpose")

    return once


class FileStream:
    """A stream of files of ten orders, a file a micro-batch, that ends when it has read them all."""

    def __init__(self, spark, database, folder, name="orders"):
        self.spark, self.database, self.name = spark, database, name
        self.files, self.checkpoint = folder / f"files-{name}", folder / f"checkpoint-{name}"
        self.files.mkdir(exist_ok=True)
        register(spark)

    def add(self, number, rows=10):
        lines = [json.dumps({"customer": f"c{i % 7}", "n": number * 10 + i}) for i in range(rows)]
        file = self.files / f"{number:03}.jsonl"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (number, number))  # Spark reads files in the order of their times

    def frame(self):
        frame = self.spark.readStream.schema("customer string, n int").option("maxFilesPerTrigger", 1)
        return frame.json(str(self.files))

    def run(self, frame=None, *, foreach=None, query_name=None, **options):
        """Write all files there are, by the format or by a function. Raises what has stopped the query."""
        options = target(self.database.dsn, stream=self.name, orderBy="n") | options
        given = {name: value for name, value in options.items() if value is not None}
        writer = (frame or self.frame()).writeStream
        writer = writer.foreachBatch(foreach) if foreach else writer.format("outbox").options(**given)
        writer = writer.queryName(query_name) if query_name else writer
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_commit(self):
        """Delete the newest entry of the query's commit log: Spark repeats that micro-batch."""
        entries = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        newest = max(entries, key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        return int(newest.name)

    def numbers(self):
        return [json.loads(value)["n"] for _, value, _, _ in self.database.records()]
