"""A driver whose tasks fail at random while copies of slow ones run: batch after batch into one outbox.

Run as a process, since speculation needs executors in processes of their own: `faulty_spark.py <way> <jar> <runs>
<folder>`, with the connection string in FAULTY_DSN. The way is `sink`, `driver` or `format`. Writes a line of JSON per
batch: its outcome. Every fault leaves an empty file in the folder.

Tasks fail before, in the middle of and after their rows, some take long enough for a copy to be started, executors die,
and connections to Postgres are cut, now and then between a commit and its acknowledgement.
"""

import json
import os
import random
import sys
import threading
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support.outbox_format import options_of, write

from harvest_lib.errors import DatabaseUnavailable, HarvestError
from harvest_lib.spark import outbox_sink
from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import BatchId, Records, sink
from infra.chaos.link import Links

ROWS = 2_000
PARTITIONS = 8
DRIVERS = {"sink": 1, "driver": 0, "format": 0}
"""Connections of the driver: the sink's has one before its tasks have theirs, asks for the table, and is not to be cut
then."""
PAUSES = {"sink": (2, 10), "driver": (5, 40), "format": (2, 10)}
"""Seconds between cuts: the least and the most. The driver's connection lasts as long as its batch."""
REPEATED = 20
"""Repeats of a batch whose one connection was cut."""
RECORDS = Records(
    topic="faulty", key="customer", value=["id", "place"], headers={"batch": BatchId()}, order_by=["place"]
)


def unreliable(folder, row_of_fault):
    """Return a function for rows that fails, dawdles or ends its executor once in a while: once per task at most."""

    def step(identity):
        import os  # noqa: PLC0415 - runs in the worker
        import random  # noqa: PLC0415
        import signal  # noqa: PLC0415
        import time  # noqa: PLC0415
        import uuid  # noqa: PLC0415

        def leave(what):
            with open(f"{folder}/{what}-{uuid.uuid4()}", "w"):  # noqa: PTH123
                pass

        if identity % row_of_fault != 0:
            return identity
        dice = random.SystemRandom().random()
        if dice < 0.08:
            leave("failed")
            raise RuntimeError("a fault made on purpose")
        if dice < 0.11:
            leave("slow")
            time.sleep(2)
        elif dice < 0.115:
            leave("killed")
            with open(f"/proc/{os.getppid()}/status") as status:  # noqa: PTH123
                parent = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
            os.kill(parent, signal.SIGKILL)  # the executor, above the daemon that this worker was forked from
        return identity

    return step


@contextmanager
def cuts(proxy, folder, drivers, pauses):
    """Cut all connections of tasks every now and then."""
    ended = threading.Event()

    def cut():
        dice = random.Random()
        while not ended.wait(dice.uniform(*pauses)):
            while proxy.connections <= drivers and not ended.wait(0.05):
                pass
            (folder / f"cut-{uuid.uuid4()}").touch()
            proxy.cut()
            proxy.heal()

    thread = threading.Thread(target=cut, name="cuts")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def home(folder):
    """Return a home for Spark whose executors work in the folder, else they would inside the installed package."""
    made = folder / "home"
    made.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (made / part.name).symlink_to(part)
    return made


def session(jar, folder):
    settings = {
        "spark.jars": jar,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "100",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.3",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()


def by_sink(frame, batch, *, dsn, proxy):
    """Write a batch by the sink, whose tasks alone go through the proxy."""
    real, info = outbox_sink.jdbc_target, conninfo_to_dict(dsn)

    def through_proxy(connection, tables):
        target = real(connection, tables)
        return replace(target, url=target.url.replace(f":{info['port']}/", f":{proxy.port}/"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox_sink, "jdbc_target", through_proxy)
        report = sink(frame, dsn=dsn, batch_id=batch, records=RECORDS, table="faulty")
    return {"status": report.status, "rows": report.rows}


def by_driver(frame, batch, *, dsn, proxy):
    """Write a batch through the driver, whose one connection goes through the proxy, again as long as that is cut."""
    rows = frame.select("*", F.to_json(F.struct("id", "place")).alias("value"))
    for left in reversed(range(REPEATED)):
        try:
            report = sink(
                rows,
                dsn=make_conninfo(dsn, host=proxy.host, port=proxy.port),
                batch_id=batch,
                records=replace(RECORDS, value="value"),
                through="driver",
            )
        except DatabaseUnavailable:
            if not left:
                raise
        else:
            return {"status": "promoted", "rows": report.rows}
    return None


def by_format(frame, batch, *, dsn, proxy):
    """Write a batch by the data source, whose driver goes through the proxy too."""
    write(frame, make_conninfo(dsn, host=proxy.host, port=proxy.port), batch, table="faulty", **options_of(RECORDS))
    return {"status": "promoted", "rows": ROWS}


def main(way, jar, runs, folder):
    dsn = os.environ["FAULTY_DSN"]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = Path(folder)
    os.environ["SPARK_HOME"] = str(home(folder))
    info = conninfo_to_dict(dsn)
    write = {"sink": by_sink, "driver": by_driver, "format": by_format}[way]
    with Links() as links:
        proxy = links.add()
        proxy.forward_to(str(info["host"]), int(info["port"]))

        spark = session(jar, folder)
        register(spark)
        with cuts(proxy, folder, DRIVERS[way], PAUSES[way]):
            for run in range(int(runs)):
                fail = F.udf(unreliable(str(folder), 25), "bigint")
                frame = spark.range(0, ROWS, 1, PARTITIONS).select(
                    fail("id").alias("id"),
                    F.concat(F.lit("c"), F.col("id") % 50).alias("customer"),
                    ((F.col("id") * 997) % ROWS).alias("place"),
                )
                try:
                    said = write(frame, f"batch-{run}", dsn=dsn, proxy=proxy)
                except (HarvestError, PySparkException, Py4JError) as error:
                    said = {"status": "failed", "error": str(error)}
                said["batch"] = f"batch-{run}"
                sys.stdout.write(json.dumps(said) + "\n")
                sys.stdout.flush()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
