"""`format("outbox")` on real Spark and real Postgres: batches and micro-batches, each once, classic and by Connect."""

import re

import pytest
from support.outbox_format import CAPTURES_LOGS, ROOT, FileStream, either, failing_once, hundred_orders, target, write
from support.sink import Database, by_key

from harvest_lib.spark.outbox_sink import Records, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

PAGE = (ROOT / "docs" / "spark-write.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", params=["classic", "connect"])
def spark(request, tmp_path_factory):
    with either(request, tmp_path_factory) as made:
        yield made


def staged(database):
    tables = database.ask("SELECT relname FROM pg_class WHERE relname ~ '_staging_[0-9a-f]{8}$'")
    return [database.ask(f'SELECT count(*) FROM "{table}"')[0][0] for (table,) in tables]  # noqa: S608


def test_a_micro_batch_that_spark_repeats_is_written_once(spark, database, tmp_path):
    stream = FileStream(spark, database, tmp_path)
    for number in range(3):
        stream.add(number)
    stream.run()
    for repeated in range(2, 5):
        assert stream.forget_commit() == repeated
        stream.add(repeated + 1)
        stream.run()
    assert stream.numbers() == list(range(60))
    assert database.ask("SELECT batch, rows FROM outbox_batches ORDER BY promoted_at") == [
        (f"orders:{number}", 10) for number in range(6)
    ]
    assert staged(database) == [0]


def test_streams_beside_each_other_do_not_see_each_other(spark, database, tmp_path):
    first, second = (FileStream(spark, database, tmp_path, name) for name in ("first", "second"))
    for stream in (first, second):
        stream.add(0)
    first.run()
    second.run(second.frame().selectExpr("customer", "n", "n + 1 AS more"))
    assert database.ask("SELECT batch FROM outbox_batches ORDER BY batch") == [("first:0",), ("second:0",)]
    assert database.counts()["outbox"] == 20


def test_a_second_query_of_the_same_name_is_refused(spark, database, tmp_path):
    stream = FileStream(spark, database, tmp_path)
    stream.add(0)
    stream.run()
    (tmp_path / "other").mkdir()
    other = FileStream(spark, database, tmp_path / "other")
    other.add(7)
    with pytest.raises(
        Exception, match=r"(?s)orders:0 was promoted before, with other data.*give the stream a new name"
    ):
        other.run()
    assert stream.numbers() == list(range(10))
    assert staged(database) == [0]


@pytest.mark.parametrize("spark", ["connect"], indirect=True, scope="module")  # whose tasks are tried again
def test_attempts_that_fail_are_not_promoted(spark, database, tmp_path):
    frame = hundred_orders(spark)
    write(frame.mapInArrow(failing_once(tmp_path), frame.schema), database.dsn, orderBy="place", value="place")
    assert sorted(path.name for path in tmp_path.glob("failed-*")) == ["failed-0", "failed-1"]
    assert [int(value) for _, value, _, _ in database.records()] == list(range(100))
    assert staged(database) == [0]


def test_the_programs_of_the_documentation_run(spark, database, tmp_path, monkeypatch, capsys):
    (table,) = re.findall(r"CREATE TABLE[^;\"]*", PAGE)
    database.connection.execute(table)
    options = target(database.dsn)
    spark.sql("SELECT 'c' AS customer_id, timestamp_seconds(id) AS placed_at FROM range(3)").write.json(
        str(tmp_path / "placed")
    )
    monkeypatch.setenv("HARVEST_DSN", options["dsn"])
    monkeypatch.setenv("PGPASSWORD", options["password"])
    names = {
        "spark": spark,
        "from_kafka": spark.sql(
            "SELECT encode('k', 'utf-8') AS key, encode('v', 'utf-8') AS value, 'orders' AS topic, now() AS timestamp, "
            "array(named_struct('key', 'h', 'value', encode('1', 'utf-8'))) AS headers"
        ),
        "placed": spark.readStream.schema("customer_id string, placed_at timestamp").json(str(tmp_path / "placed")),
        "checkpoint": str(tmp_path / "checkpoint"),
        "dsn": options["dsn"],
        "password": options["password"],
    }
    for program in PROGRAM.findall(PAGE):
        if CAPTURES_LOGS or "python_worker_logs" not in program:
            exec(program.replace("SparkSession.builder.getOrCreate()", "spark"), names)  # noqa: S102 - ours
    spark.streams.removeListener(names["listener"])
    assert database.ask("SELECT count(*) FROM orders") == [(2,)]
    assert database.ask(
        "SELECT batch, rows FROM outbox_batches UNION SELECT batch, rows FROM orders_batches ORDER BY batch"
    ) == [
        ("copied-2026-11-21", 1),
        ("orders-2026-11-21", 2),
        ("orders-from-files:0", 3),
    ]


@pytest.mark.parametrize("spark", ["connect"], indirect=True, scope="module")  # the other: test_through_driver
def test_the_sink_goes_through_the_driver_of_connect(spark, dsn, monkeypatch):
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `builder.remote` does, which was not asked here
    database = Database(dsn, "native")
    records = Records(topic="orders", key="customer", value="text", order_by=["place"])
    for status in ("promoted", "already-promoted"):
        done = sink(hundred_orders(spark), dsn=dsn, batch_id="b", records=records, through="driver")
        assert (done.rows, done.status) == (100, status)
    expected = sorted(hundred_orders(spark).collect(), key=lambda row: row.place)
    assert by_key(database.records()) == by_key((row.customer, row.text) for row in expected)
    database.connection.close()
