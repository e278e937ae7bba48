"""What a batch did, told by log lines, by Spark's capture of them, by the ledger and by a listener."""

import logging
import subprocess
import sys

import pytest
from support.outbox_format import CAPTURES_LOGS, FileStream, either, environment, hundred_orders, write
from support.sink import Database
from support.waiting import eventually

from harvest_lib.spark.listener import BatchListener
from harvest_lib.spark.outbox_sink import Records, foreach_batch, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

RECORDS = Records(topic="orders", key="customer", value="text")
LOGGER = "harvest_lib.spark.sink.report"


@pytest.fixture(scope="module", params=["classic", "connect"])
def spark(request, tmp_path_factory):
    with either(request, tmp_path_factory) as made:
        yield made


@pytest.fixture
def database(dsn):
    """An outbox that all ways can write."""
    made = Database(dsn, "native")
    yield made
    made.connection.close()


@pytest.fixture
def heard(caplog):
    """Return what was logged of batches: batch, status and rows. The seconds must be numbers."""

    def events():
        found = [each for each in caplog.records if each.message == "spark_batch_done"]
        assert all(each.staging_seconds >= 0 <= each.promote_seconds for each in found)
        return [(each.batch, each.status, each.rows) for each in found]

    caplog.set_level(logging.INFO, LOGGER)
    return events


@pytest.mark.parametrize("spark", ["classic"], indirect=True, scope="module")
@pytest.mark.parametrize("through", ["jdbc", "driver"])
def test_each_batch_of_the_sink_is_a_line(spark, database, heard, caplog, through):
    frame = hundred_orders(spark)
    for each in (frame, frame, frame.where("false")):
        batch = "b" if each is frame else "none"
        sink(each, dsn=database.dsn, batch_id=batch, records=RECORDS, through=through, allow_empty=True)
    assert heard() == [("b", "promoted", 100), ("b", "already-promoted", 100), ("none", "empty", 0)]
    first = caplog.records[0]
    assert first.promote_seconds > 0
    assert (first.staging_seconds > 0) == (through == "jdbc")
    assert first.context["staging_seconds"] == str(first.staging_seconds)


def test_each_batch_of_the_format_is_a_line_of_the_drivers_log(database, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "from support.outbox_format import FileStream, hundred_orders, write\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "dsn, folder = sys.argv[1:]\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "for _ in range(2): write(hundred_orders(spark), dsn)\n"
        "write(hundred_orders(spark).where('false'), dsn, 'none', allowEmpty='true')\n"
        "stream = FileStream(spark, SimpleNamespace(dsn=dsn), Path(folder))\n"
        "stream.add(0)\n"
        "stream.run()\n"
    )
    command = [sys.executable, str(program), database.dsn, str(tmp_path)]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    lines = [line for line in done.stderr.splitlines() if "spark_batch_done" in line]
    wanted = [
        ("b", "promoted", 100),
        ("b", "already-promoted", 100),
        ("none", "empty", 0),
        ("orders:0", "promoted", 10),
    ]
    assert len(lines) == len(wanted)
    for line, (batch, status, rows) in zip(lines, wanted, strict=True):
        assert f"INFO spark_batch_done {{'batch': '{batch}', 'rows': '{rows}', 'status': '{status}', 'staging_s" in line


@pytest.mark.skipif(not CAPTURES_LOGS, reason="Spark 4.0 captures no log lines of Python workers")
def test_spark_captures_the_line_of_a_batch(spark, database):
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        write(hundred_orders(spark), database.dsn, "captured")
        logs = spark.tvf.python_worker_logs().where("msg = 'spark_batch_done' AND context.batch = 'captured'")
        (line,) = logs.selectExpr(
            "level", "logger", "context.status", "context.rows", "context.staging_seconds"
        ).collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert tuple(line)[:4] == ("INFO", LOGGER, "promoted", "100")
    assert float(line.staging_seconds) > 0


@pytest.mark.parametrize("way", ["format", "foreach"])
def test_a_listener_tells_of_each_micro_batch(spark, database, tmp_path, monkeypatch, heard, way):
    told = []
    records = Records(topic="orders", key="customer", value="n")
    write_by_sink = foreach_batch(dsn=database.dsn, stream="orders", records=records, through="driver")
    by_sink = {"foreach": write_by_sink} if way == "foreach" else {}
    tell = {"tell": lambda each: told.append((each.batch, each.status, each.rows))} if way == "foreach" else {}
    stream, other = (FileStream(spark, database, tmp_path, name) for name in ("orders", "other"))
    listener = BatchListener(dsn=database.dsn, stream="orders", **tell)
    spark.streams.addListener(listener)
    try:
        for number in range(2):
            stream.add(number)
            other.add(number)
        other.run(query_name="other")
        stream.run(query_name="orders", **by_sink)
        assert stream.forget_commit() == 1
        stream.add(2)
        stream.run(query_name="orders", **by_sink)
        stream.add(3)
        stream.run(stream.frame().where("n < 0"), query_name="orders", **by_sink)
        eventually(lambda: len(told or heard()) >= 5)
    finally:
        spark.streams.removeListener(listener)
    assert (told or heard()) == [
        ("orders:0", "promoted", 10),
        ("orders:1", "promoted", 10),
        ("orders:1", "already-promoted", 10),
        ("orders:2", "promoted", 10),
        ("orders:3", "empty", 0),
    ]
    seconds = database.ask(
        "SELECT staging_seconds > 0, promote_seconds > 0 FROM outbox_batches WHERE batch ~ '^orders'"
    )
    assert seconds == [(way == "format", True)] * 3
