"""The sink by one COPY of the driver: the same records as by JDBC, in the order of each key, all of them or none."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F
from support import outbox_format
from support.sink import Database, by_key
from support.waiting import eventually

from harvest_lib.errors import ConfigError, DatabaseAccessDenied, RecordError
from harvest_lib.spark.errors import BatchConflict, SourceError
from harvest_lib.spark.outbox_sink import BatchId, Fixed, Records, main, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

BATCH = 'b\'1 \\ "2"; ü'
RECORDS = Records(topic="orders", key="customer", value="text")
HEADERS = {"kind": Fixed("100% 'new'"), "batch": BatchId(), "place": "place", "text": "maybe"}


@pytest.fixture(params=["varchar", "bytea"])
def native(request, dsn):
    database = Database(dsn, "native", request.param)
    yield database
    database.connection.close()


@pytest.fixture
def outbox(dsn):
    database = Database(dsn, "native")
    yield database
    database.connection.close()


def through(outbox, frame, records=RECORDS, /, **more):
    return sink(frame, **{"dsn": outbox.dsn, "batch_id": "b", "records": records, "through": "driver", **more})


def rows_of(frame):
    """Return rows with all that text can be: empty, null, tabs, zeros of binary lengths, other alphabets."""
    texts = F.array(*(F.lit(each) for each in ("", "a\tb\n\\", "ü 日本 🙂", "x" * 300, '{"a": null}')), F.lit(None))
    return frame.select(
        "customer",
        "place",
        F.concat(F.lit("order "), "place").alias("text"),
        texts[F.col("place") % 6].alias("maybe"),
        texts[(F.col("place") + 1) % 6].alias("value"),
    )


@pytest.mark.parametrize("key", ["customer", ["customer", "place"]])
@pytest.mark.parametrize("headers", [HEADERS, {}])
def test_records_are_those_of_the_way_by_jdbc(native, frame, key, headers):
    records = Records(topic="orders", key=key, value="value", headers=headers, order_by=["place"])
    report = through(native, rows_of(frame), records, batch_id=BATCH)
    assert (report.rows, report.status) == (100, "promoted")
    ours = native.records()
    native.ask("TRUNCATE outbox, outbox_batches")
    sink(rows_of(frame), dsn=native.dsn, batch_id=BATCH, records=records)
    theirs = native.records()
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)
    of_keys = [by_key((each[0], each) for each in found) for found in (ours, theirs)]
    assert of_keys[0] == of_keys[1]


def test_the_ledger_is_read_under_any_settings_of_the_role(outbox, frame):
    dsn = make_conninfo(outbox.dsn, options="-c datestyle=SQL,DMY")
    began = int(time.time())
    for status in ("promoted", "already-promoted"):
        report = through(outbox, rows_of(frame), dsn=dsn)
        assert report.status == status
        assert began <= report.at <= time.time()


def test_bytes_are_written_as_they_are(dsn, frame):
    database = Database(dsn, "native", "bytea")
    records = Records(topic="orders", key="customer", value="value", order_by=["place"])
    bytes_of = frame.select("customer", "place", F.unhex(F.lpad(F.hex("place"), 8, "0")).alias("value"))
    through(database, bytes_of, records)
    assert {bytes(value) for _, value, _, _ in database.records()} == {n.to_bytes(4, "big") for n in range(100)}
    database.connection.close()


def test_the_command_line_goes_through_the_driver(outbox, frame, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("HARVEST_SPARK_JARS", raising=False)
    frame.write.parquet(str(tmp_path / "orders.parquet"))
    arguments = [str(tmp_path / "orders.parquet"), "--dsn", outbox.dsn, "--batch-id", "b", "--topic", "orders"]
    arguments += ["--key", "customer", "--value", "text", "--order-by", "place"]
    assert main(arguments) == 3
    assert "no Postgres JDBC driver was named" in capsys.readouterr().err
    assert main([*arguments, "--through", "driver"]) == 0
    assert "100 rows  promoted" in capsys.readouterr().out
    assert outbox.counts() == {"outbox": 100, "outbox_batches": 1}


def test_without_an_order_records_stand_as_the_frame_does(outbox, frame):
    through(outbox, frame)
    assert [value for _, value, _, _ in outbox.records()] == [row.text for row in frame.collect()]


def test_each_key_is_in_the_declared_order_and_equals_stand_as_in_the_frame(outbox, frame):
    halves = frame.select("*", F.when(F.col("place") < 90, F.floor(F.col("place") / 2)).alias("half"))
    through(outbox, halves, replace(RECORDS, order_by=["half"]))
    expected = sorted(halves.collect(), key=lambda row: (row.half is None, row.half or 0))
    assert by_key(outbox.records()) == by_key((row.customer, row.text) for row in expected)


def test_keys_that_are_joined_to_the_same_text_are_one_key(outbox, spark):
    numbers = spark.range(0, 60, 1, 3).select(
        F.when(F.col("id") % 2 == 0, "a:b").otherwise("a").alias("first"),
        F.when(F.col("id") % 2 == 0, "c").otherwise("b:c").alias("second"),
        F.col("id").cast("int").alias("number"),
    )
    records = Records(topic="orders", key=["first", "second"], value="number", order_by=["number"])
    through(outbox, numbers, records)
    assert [(key, int(value)) for key, value, *_ in outbox.records()] == [("a:b:c", number) for number in range(60)]


def test_a_batch_is_written_once_and_other_data_is_refused(outbox, frame):
    for way, status in (("driver", "promoted"), ("driver", "already-promoted"), ("jdbc", "already-promoted")):
        report = through(outbox, frame, through=way)
        assert (report.rows, report.status) == (100, status)
    with pytest.raises(BatchConflict):
        through(outbox, frame.limit(99))
    assert outbox.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}
    assert through(outbox, frame.limit(0), batch_id="c", allow_empty=True).status == "empty"


def test_another_that_has_written_it_since_is_seen_under_the_lock(outbox, frame, monkeypatch):
    through(outbox, frame)
    monkeypatch.setattr("harvest_lib.spark.sink.batches.ledger_entry", lambda *_, **__: None)
    assert through(outbox, frame).status == "already-promoted"
    with pytest.raises(BatchConflict):
        through(outbox, frame.limit(7))
    assert outbox.counts() == {"outbox": 100, "outbox_batches": 1}


def test_a_task_that_fails_after_its_rows_changes_nothing(outbox, frame, spark, tmp_path):
    failing = frame.mapInArrow(outbox_format.failing_once(str(tmp_path)), frame.schema)
    records = replace(RECORDS, order_by=["place"])
    try:
        through(outbox, failing, records)
    except SourceError:  # where a task may not fail: nothing is there
        assert outbox.counts() == {"outbox": 0, "outbox_batches": 0}
        through(outbox, failing, records)
    assert len(list(tmp_path.glob("failed-*"))) >= 1
    assert outbox.ask("SELECT count(*), count(DISTINCT kafka_value) FROM outbox") == [(100, 100)]


def test_a_frame_that_fails_in_the_middle_writes_nothing(outbox, frame):
    broken = frame.repartition(4, "customer").select(
        "customer", F.expr("if(customer = 'c6', CAST(assert_true(false) AS string), text)").alias("text")
    )
    with pytest.raises(SourceError) as caught:
        through(outbox, broken)
    assert "order " not in str(caught.value)
    assert outbox.counts() == {"outbox": 0, "outbox_batches": 0}


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("customer", "if(place != 50, customer, null)", "1 rows have null in the key: customer"),
        ("customer", "rpad(customer, 1000, 'x')", "the longest key has 1000 characters"),
        ("text", "rpad(text, 20000, 'x')", "the longest value has 20000 characters"),
    ],
)
def test_rows_that_cannot_be_records_are_refused(outbox, frame, column, value, text):
    outbox.ask("ALTER TABLE outbox ALTER kafka_value TYPE varchar(10000)")
    with pytest.raises(RecordError, match=text) as caught:
        through(outbox, frame.withColumn(column, F.expr(value)))
    assert "order 1" not in str(caught.value)
    assert outbox.counts() == {"outbox": 0, "outbox_batches": 0}


@pytest.mark.parametrize(
    ("records", "more", "text"),
    [
        ({"value": ["text", "place"]}, {}, "a value of several columns"),
        ({"key": "price"}, {}, "a column 'price' of type numeric"),
        ({"headers": {"h": "at"}}, {}, "a column 'at' of type timestamp"),
        ({"order_by": ["text"]}, {}, "an order by 'text', which is text"),
        ({}, {"table": "bought"}, "a business table"),
        ({}, {"outbox": "goharvest"}, "create_time has no default"),
        ({}, {"outbox": "json"}, "whose kafka_value is jsonb"),
    ],
)
def test_what_only_jdbc_writes_is_refused_before_spark_begins(outbox, frame, records, more, text):
    outbox.ask("CREATE TABLE bought (customer text, place int, text text, price numeric, at timestamptz)")
    outbox.ask(
        "CREATE TABLE goharvest (LIKE outbox INCLUDING ALL); ALTER TABLE goharvest ALTER create_time DROP DEFAULT"
    )
    outbox.ask(
        "CREATE TABLE json (LIKE outbox INCLUDING ALL);"
        "ALTER TABLE json ALTER kafka_value TYPE jsonb USING kafka_value::jsonb"
    )
    typed = frame.select("*", F.expr("1.5BD AS price"), F.current_timestamp().alias("at"))
    given = replace(RECORDS, **records)
    with pytest.raises(ConfigError, match=text) as caught:
        through(outbox, typed, given, **more)
    assert "leave `through` out" in caught.value.next_step
    through(outbox, typed, given, through="jdbc", **more) if "json" not in more.values() else None


def test_rights_that_were_taken_away_are_named(outbox, frame):
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS copier")
        connection.execute("CREATE ROLE copier LOGIN PASSWORD 'copier'")
        connection.execute("GRANT CREATE, USAGE ON SCHEMA public TO copier; GRANT SELECT ON outbox TO copier")
    dsn = psycopg.conninfo.make_conninfo(outbox.dsn, user="copier", password="copier")
    with pytest.raises(DatabaseAccessDenied, match="permission denied for table outbox"):
        through(outbox, frame, dsn=dsn)
    outbox.ask("DROP OWNED BY copier; DROP ROLE copier")


def test_a_driver_that_is_killed_in_the_middle_leaves_nothing(outbox, tmp_path):
    program = """
import sys
from pyspark.sql import SparkSession
from harvest_lib.spark.outbox_sink import Records, sink
def held(batches):
    import time
    for batch in batches:
        if int(batch.column("text")[0].as_py()) >= 20_000:
            time.sleep(600)  # until it is killed
        yield batch
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(0, 40_000, 1, 40).selectExpr("concat('c', id % 7) AS customer", "CAST(id AS string) AS text")
sink(frame.mapInArrow(held, frame.schema), dsn=sys.argv[1], batch_id="b",
     records=Records(topic="orders", key="customer", value="text"), through="driver")
"""
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", program, outbox.dsn],
            cwd=tmp_path,
            env=outbox_format.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        ours = "FROM pg_stat_progress_copy WHERE datname = current_database()"
        copying = f"SELECT coalesce(max(tuples_processed), 0) > 2000 {ours}"
        eventually(lambda: outbox.ask(copying) == [(True,)] or process.poll() is not None, seconds=120)
        assert process.poll() is None, (tmp_path / "log").read_text()[-2_000:]
        os.killpg(process.pid, signal.SIGKILL)
    eventually(lambda: outbox.ask(f"SELECT count(*) {ours}") == [(0,)])
    assert outbox.counts() == {"outbox": 0, "outbox_batches": 0}
