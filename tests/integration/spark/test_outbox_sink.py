"""The sink on real Spark and real Postgres: the fate of rows, in both outbox layouts, and of a batch again."""

import json

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F  # noqa: N812
from support.sink import RECORDS, Database

from harvest_lib.errors import DatabaseError
from spark_jobs.errors import BatchConflict
from spark_jobs.outbox_sink import BatchId, Fixed, Records, sink
from spark_jobs.sink.database import connect, takes_options

pytestmark = [pytest.mark.full, pytest.mark.spark]

BATCH = 'b%s\'1 \\ of\t"2"; -c ü'


@pytest.mark.parametrize(
    ("layout", "value_type"), [("goharvest", "varchar"), ("native", "varchar"), ("native", "bytea")]
)
def test_rows_become_records_in_the_declared_order(dsn, frame, layout, value_type):
    database = Database(dsn, layout, value_type)
    records = Records(
        topic="orders",
        key=["customer", "place"],
        value=["place", "text"],
        headers={"kind": Fixed("100% 'new'"), "batch": BatchId(), "text": "text"},
        order_by=["place"],
    )
    report = sink(frame, dsn=dsn, batch_id=BATCH, records=records)
    assert (report.batch, report.rows, report.status) == (BATCH, 100, "promoted")
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}
    found = database.records()
    rows = sorted(frame.collect(), key=lambda row: row.place)
    assert [json.loads(value) for _, value, _, _ in found] == [{"place": row.place, "text": row.text} for row in rows]
    assert [key for key, *_ in found] == [f"{row.customer}:{row.place}" for row in rows]
    assert {tuple(names) for _, _, names, _ in found} == {("kind", "batch", "text")}
    assert [values for *_, values in found] == [["100% 'new'", BATCH, row.text] for row in rows]
    assert database.ask("SELECT DISTINCT kafka_topic, leader_id FROM outbox") == [("orders", None)]
    if layout == "native":
        assert database.ask("SELECT count(DISTINCT transaction_id) FROM outbox") == [(1,)]
    database.connection.close()


def test_without_an_order_records_stand_as_the_frame_does(database, frame):
    sink(frame, dsn=database.dsn, batch_id="b", records=Records(topic="orders", key="customer", value="text"))
    assert [value for _, value, _, _ in database.records()] == [row.text for row in frame.collect()]


def test_names_are_sent_with_each_row_behind_a_pooler_alone(database, frame, pooled):
    for dsn, expected in ((database.dsn, True), (pooled("session", "options"), False), (pooled("session", ""), False)):
        with connect(dsn) as connection:
            assert takes_options(connection) is expected


@pytest.mark.parametrize("ignored", ["", "options"])
def test_rows_go_through_a_pooler_by_the_session(database, frame, pooled, ignored):
    """It refuses settings of a session as that begins, or ignores them."""
    report = sink(frame, dsn=pooled("session", ignored), batch_id=BATCH, records=RECORDS)
    assert (report.rows, report.status) == (100, "promoted")
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}


@pytest.mark.gate
def test_business_rows_and_records_are_written_together_and_say_the_same(orders, frame):
    rows = frame.select(
        "customer",
        F.lit("f47ac10b-58cc-4372-a567-0e02b2c3d479").alias("id"),
        (F.col("place") / 3).cast("decimal(20,5)").alias("price"),
        F.to_json(F.struct("text")).alias("%d of"),
        F.lit("foul").alias("mood"),
        F.timestamp_seconds("place").alias("at"),
        F.concat(F.lit("only the record has "), "place").alias("note"),
    )
    records = Records(
        topic="orders",
        key="customer",
        value=["number", "id", "price", "%d of", "mood", "at", "note", "since"],
        headers={"number": "number"},
        order_by=["at"],
    )
    sink(rows, dsn=orders.dsn, batch_id="b", records=records, table="orders", batch_column="batch")
    assert orders.counts("orders") == {"outbox": 100, "orders": 100, "orders_staging": 0, "orders_batches": 1}
    # Postgres rounds prices for the table: the record has them rounded too.
    same = orders.ask("""
        SELECT count(*) FROM orders b JOIN outbox o ON o.kafka_header_values[1] = b.number::text,
            LATERAL (SELECT o.kafka_value::jsonb AS v) AS record
        WHERE (v->>'price')::numeric = b.price AND v->'%d of' = b."%d of" AND (v->>'at')::timestamptz = b.at
            AND v->>'mood' = 'foul' AND v->>'id' = b.id::text AND o.kafka_key = b.customer AND batch = 'b'
            AND v->>'note' = 'only the record has ' || extract(epoch FROM at)::int
            AND (v->>'since')::timestamptz = b.since AND b.number = (v->>'number')::bigint""")
    assert same == [(100,)]
    assert [number for (number,) in orders.ask("SELECT number FROM orders ORDER BY at")] == list(range(1, 101))
    assert orders.ask("SELECT array_agg(kafka_header_values[1]::int ORDER BY id) FROM outbox") == [
        (list(range(1, 101)),)
    ]


def test_all_types_come_through(spark, database):
    row = spark.sql("""
        SELECT 'k' AS key, true AS b, 1Y AS t, 2S AS s, 3 AS i, 4L AS l, CAST(0.5 AS FLOAT) AS f, 0.25D AS d,
               CAST(1.50 AS DECIMAL(9, 2)) AS n, DATE '2026-11-21' AS day,
               TIMESTAMP '2026-11-21 10:00:00.000001Z' AS at,
               TIMESTAMP_NTZ '2026-11-21 10:00:00' AS local, array('x', NULL) AS texts, array(1L, 2L) AS longs,
               CAST(NULL AS STRING) AS nothing, 'a' AS batch, 'b' AS row, 'c' AS `with.dot`, 'ü"\\'' AS quoted""")
    sink(row, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="key"))
    ((_, value, _, _),) = database.records()
    assert json.loads(value) == {
        "key": "k", "b": True, "t": 1, "s": 2, "i": 3, "l": 4, "f": 0.5, "d": 0.25, "n": 1.5, "day": "2026-11-21",
        "at": "2026-11-21T10:00:00.000001+00:00", "local": "2026-11-21T10:00:00", "texts": ["x", None],
        "longs": [1, 2], "nothing": None, "batch": "a", "row": "b", "with.dot": "c", "quoted": "ü\"'",
    }  # fmt: skip


@pytest.fixture
def new_york(spark):
    """The zone of Spark's Java process."""
    zones = spark.sparkContext._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone("America/New_York"))
    yield
    zones.setDefault(before)


@pytest.mark.usefixtures("new_york")
def test_days_and_times_are_not_moved_by_the_zone_or_the_calendar_of_java(spark, database):
    row = spark.sql("""
        SELECT 'k' AS key, DATE '1582-10-10' AS day, DATE '0001-01-01' AS first, TIMESTAMP_NTZ '1582-10-10' AS left_out,
               TIMESTAMP_NTZ '2026-03-08 02:30:00' AS gap, TIMESTAMP '1500-02-28 00:00:00.000001Z' AS old,
               TIMESTAMP '2026-11-01 01:30:00-05:00' AS fold, timestamp_micros(253402300800000000) AS far,
               array(DATE '1582-10-10', NULL) AS days, array(TIMESTAMP_NTZ '2026-03-08 02:30:00') AS gaps,
               array(TIMESTAMP '1500-02-28 00:00:00Z') AS olds, CAST(array() AS ARRAY<DATE>) AS no_days,
               CAST(NULL AS ARRAY<TIMESTAMP>) AS none, CAST(NULL AS TIMESTAMP) AS never""")
    sink(row, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="key"))
    ((_, value, _, _),) = database.records()
    assert json.loads(value) == {
        "key": "k",
        "day": "1582-10-10",
        "first": "0001-01-01",
        "left_out": "1582-10-10T00:00:00",
        "gap": "2026-03-08T02:30:00",
        "old": "1500-02-28T00:00:00.000001+00:00",
        "fold": "2026-11-01T06:30:00+00:00",
        "far": "10000-01-01T00:00:00+00:00",
        "days": ["1582-10-10", None],
        "gaps": ["2026-03-08T02:30:00"],
        "olds": ["1500-02-28T00:00:00+00:00"],
        "no_days": [],
        "none": None,
        "never": None,
    }


def test_settings_of_the_role_do_not_change_how_records_are_spelled(spark, database):
    dsn = make_conninfo(database.dsn, options="-c datestyle=SQL,DMY -c extra_float_digits=-10")
    row = spark.sql("SELECT DATE '2026-02-01' AS day, 0.123456789012345D AS number")
    for _ in range(2):  # the second finds the ledger's entry
        sink(row, dsn=dsn, batch_id="b", records=Records(topic="t", key="day", value="number"))
    assert [(key, value) for key, value, *_ in database.records()] == [("2026-02-01", "0.123456789012345")]


def test_a_time_before_the_year_1_is_refused(spark, database):
    row = spark.sql("SELECT 'k' AS key, timestamp_micros(-62135596800000001) AS at")
    with pytest.raises(DatabaseError, match="out of range"):
        sink(row, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="key"))
    assert database.counts() == {"outbox": 0, "outbox_staging": 0, "outbox_batches": 0}


def test_bytes_and_tombstones_are_values_of_a_bytea_outbox(dsn, spark):
    database = Database(dsn, "native", "bytea")
    frame = spark.createDataFrame([("k", bytearray(b"\x00\xff"), 1), ("k", None, 2)], "key string, v binary, n int")
    sink(frame, dsn=dsn, batch_id="b", records=Records(topic="t", key="key", value="v", order_by=["n"]))
    assert [value for _, value, _, _ in database.records()] == [b"\x00\xff", None]
    database.connection.close()


def test_a_batch_again_writes_nothing_and_other_data_are_refused(database, frame):
    first = sink(frame, dsn=database.dsn, batch_id="b", records=RECORDS)
    again = sink(frame.orderBy("place"), dsn=database.dsn, batch_id="b", records=RECORDS)
    assert (again.status, again.at) == ("already-promoted", first.at)
    with pytest.raises(BatchConflict, match=r"(?s)b was promoted before.*with 100 rows, hash.*now it has 99 rows"):
        sink(frame.where("place > 0"), dsn=database.dsn, batch_id="b", records=RECORDS)
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}


def test_frames_of_other_columns_follow_one_another(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    sink(frame.drop("text").withColumn("new", F.lit(1)), dsn=database.dsn, batch_id="2", records=RECORDS)
    assert database.counts() == {"outbox": 200, "outbox_staging": 0, "outbox_batches": 2}


def test_rows_that_are_literals_of_the_query_are_all_written(spark, database):
    """Spark's optimizer would compute their columns itself, as if they were all of one partition."""
    rows = spark.sql("SELECT concat('c', n) AS customer, n FROM VALUES (1), (2), (3), (4), (5) AS t (n)")
    sink(rows, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="customer", value="n", order_by=["n"]))
    assert [value for _, value, _, _ in database.records()] == ["1", "2", "3", "4", "5"]
