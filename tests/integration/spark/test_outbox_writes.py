"""Frames into an outbox: the same by the sink's JDBC and by `format("outbox")`, classic and by Connect."""

import json

import pytest
from support.outbox_format import either, hundred_orders, options_of, write
from support.sink import Database

from harvest_lib.spark.outbox_sink import BatchId, Fixed, Records, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

WAYS = ["classic", "connect", "jdbc"]
BATCH = 'b%s\'1 \\ of\t"2"; -c ü'


@pytest.fixture(scope="module", params=WAYS)
def spark(request, tmp_path_factory):
    with either(request, tmp_path_factory) as made:
        yield made


@pytest.fixture
def put(request):
    """Return a function that writes a frame, and returns a report or, where Spark writes it, None."""

    def by_jdbc(frame, dsn, records, batch="b", **into):
        return sink(frame, dsn=dsn, batch_id=batch, records=records, **into)

    def by_format(frame, dsn, records, batch="b", *, table=None, batch_column=None):
        into = {"table": table, "batchColumn": batch_column} if table else {}
        write(frame, dsn, batch, **options_of(records), **into)

    return by_jdbc if request.node.callspec.params["spark"] == "jdbc" else by_format


def staged(database):
    """Return how many rows each staging table has."""
    tables = database.ask("SELECT relname FROM pg_class WHERE relname ~ '_staging(_[0-9a-f]{8})?$'")
    return [database.ask(f'SELECT count(*) FROM "{table}"')[0][0] for (table,) in tables]  # noqa: S608


@pytest.mark.parametrize(
    ("layout", "value_type"), [("goharvest", "varchar"), ("native", "varchar"), ("native", "bytea")]
)
def test_rows_become_records_in_the_declared_order(spark, put, dsn, layout, value_type):
    database, frame = Database(dsn, layout, value_type), hundred_orders(spark)
    records = Records(
        topic="orders",
        key=["customer", "place"],
        value=["place", "text"],
        headers={"Text": "text", "kind": Fixed("100% 'new'"), "batch": BatchId()},
        order_by=["place"],
    )
    report = put(frame, dsn, records, BATCH)
    assert report is None or (report.batch, report.rows, report.status) == (BATCH, 100, "promoted")
    assert database.ask("SELECT batch, rows FROM outbox_batches") == [(BATCH, 100)]
    assert staged(database) == [0]
    found = database.records()
    rows = sorted(frame.collect(), key=lambda row: row.place)
    assert [json.loads(value) for _, value, _, _ in found] == [{"place": row.place, "text": row.text} for row in rows]
    assert [key for key, *_ in found] == [f"{row.customer}:{row.place}" for row in rows]
    assert {tuple(names) for _, _, names, _ in found} == {("Text", "kind", "batch")}
    assert [values for *_, values in found] == [[row.text, "100% 'new'", BATCH] for row in rows]
    assert database.ask("SELECT DISTINCT kafka_topic, leader_id FROM outbox") == [("orders", None)]
    if layout == "native":
        assert database.ask("SELECT count(DISTINCT transaction_id) FROM outbox") == [(1,)]
    database.connection.close()


@pytest.mark.parametrize(
    "spark", ["classic", "connect", pytest.param("jdbc", marks=pytest.mark.gate)], indirect=True, scope="module"
)
def test_business_rows_and_records_are_written_together_and_say_the_same(spark, put, orders):
    rows = hundred_orders(spark).selectExpr(
        "customer", "'f47ac10b-58cc-4372-a567-0e02b2c3d479' AS id", "CAST(place / 3 AS DECIMAL(20, 5)) AS price",
        "to_json(struct(text)) AS `%d of`", "'foul' AS mood", "timestamp_seconds(place) AS at",
        "concat('only the record has ', place) AS note",
    )  # fmt: skip
    records = Records(
        topic="orders",
        key="customer",
        value=["number", "id", "price", "%d of", "mood", "at", "note", "since"],
        headers={"number": "number"},
        order_by=["at"],
    )
    put(rows, orders.dsn, records, table="orders", batch_column="batch")
    assert orders.ask("SELECT (SELECT count(*) FROM outbox), count(*) FROM orders") == [(100, 100)]
    assert orders.ask("SELECT batch, rows FROM orders_batches") == [("b", 100)]
    assert staged(orders) == [0]
    # Postgres rounds prices for the table: the record has them rounded too.
    same = orders.ask("""
        SELECT count(*) FROM orders b JOIN outbox o ON o.kafka_header_values[1] = b.number::text,
            LATERAL (SELECT o.kafka_value::jsonb AS v) AS record
        WHERE (v->>'price')::numeric = b.price AND v->'%d of' = b."%d of" AND (v->>'at')::timestamptz = b.at
            AND v->>'mood' = 'foul' AND v->>'id' = b.id::text AND o.kafka_key = b.customer AND batch = 'b'
            AND v->>'note' = 'only the record has ' || extract(epoch FROM at)::int
            AND (v->>'since')::timestamptz = b.since AND b.number = (v->>'number')::bigint
            AND b."%d of"->>'text' LIKE 'order %'""")
    assert same == [(100,)]
    assert [number for (number,) in orders.ask("SELECT number FROM orders ORDER BY at")] == list(range(1, 101))
    assert orders.ask("SELECT array_agg(kafka_header_values[1]::int ORDER BY id) FROM outbox") == [
        (list(range(1, 101)),)
    ]


def test_all_types_come_through(spark, put, database):
    row = spark.sql(r"""
        SELECT 'k' AS key, true AS b, 1Y AS t, 2S AS s, 3 AS i, 4L AS l, CAST(0.1 AS FLOAT) AS f, 0.25D AS d,
               CAST('-99999999999999999999999999999.123456789' AS DECIMAL(38, 9)) AS n, DATE '0001-01-01' AS day,
               TIMESTAMP '9999-12-31 23:59:59.999999Z' AS at, TIMESTAMP_NTZ '0001-01-01 00:00:00' AS local,
               array('x"\\', NULL, '') AS texts, array(1L, 2L) AS longs, CAST(NULL AS STRING) AS nothing,
               array(TIMESTAMP '2026-11-21 10:00:00.000001Z') AS times, 'a' AS batch, 'b' AS row, 'c' AS `with.dot`,
               concat('ü"', char(39), '\\N ', char(9), char(10), '\\.', char(10), char(13)) AS quoted""")
    put(row, database.dsn, Records(topic="t", key="key"))
    ((_, value, _, _),) = database.records()
    assert json.loads(value, parse_float=str) == {
        "key": "k", "b": True, "t": 1, "s": 2, "i": 3, "l": 4, "f": "0.1", "d": "0.25",
        "n": "-99999999999999999999999999999.123456789", "day": "0001-01-01",
        "at": "9999-12-31T23:59:59.999999+00:00", "local": "0001-01-01T00:00:00", "texts": ['x"\\', None, ""],
        "longs": [1, 2], "nothing": None, "times": ["2026-11-21T10:00:00.000001+00:00"], "batch": "a", "row": "b",
        "with.dot": "c", "quoted": "ü\"'\\N \t\n\\.\n\r",
    }  # fmt: skip


def test_rows_that_are_literals_of_the_query_are_all_written(spark, put, database):
    """Spark's optimizer would compute their columns itself, as if they were all of one partition."""
    rows = spark.sql("SELECT concat('c', n) AS customer, n FROM VALUES (1), (2), (3), (4), (5) AS t (n)")
    put(rows, database.dsn, Records(topic="t", key="customer", value="n", order_by=["n"]))
    assert [value for _, value, _, _ in database.records()] == ["1", "2", "3", "4", "5"]


def test_bytes_and_tombstones_are_values_of_a_bytea_outbox(spark, put, dsn):
    database = Database(dsn, "native", "bytea")
    frame = spark.sql("SELECT 'k' AS customer, v, n FROM VALUES (X'00FF', 1), (NULL, 2), (X'', 3) AS t (v, n)")
    put(frame, dsn, Records(topic="t", key="customer", value="v", order_by=["n"]))
    assert [value for _, value, _, _ in database.records()] == [b"\x00\xff", None, b""]
    database.connection.close()


def test_a_batch_again_writes_nothing_and_other_data_are_refused(spark, put, database):
    records, frame = Records(topic="orders", key="customer"), hundred_orders(spark)
    first = put(frame, database.dsn, records)
    again = put(frame.orderBy("place").coalesce(1), database.dsn, records)
    assert first is None or (again.status, again.at) == ("already-promoted", first.at)
    with pytest.raises(Exception, match=r"(?s)b was promoted before.*with 100 rows, hash.*now it has 99 rows"):
        put(frame.where("place > 0"), database.dsn, records)
    with pytest.raises(Exception, match=r"(?s)b was promoted before.*now it has 100 rows"):
        put(frame.selectExpr("customer", "place", "upper(text) AS text"), database.dsn, records)
    assert database.ask("SELECT (SELECT count(*) FROM outbox), count(*) FROM outbox_batches") == [(100, 1)]
    put(frame.selectExpr("customer", "place", "1 AS new"), database.dsn, records, "c")
    assert database.ask("SELECT (SELECT count(*) FROM outbox), count(*) FROM outbox_batches") == [(200, 2)]
    assert staged(database) == [0] * (1 if first else 2), "the format has one for each set of columns"
