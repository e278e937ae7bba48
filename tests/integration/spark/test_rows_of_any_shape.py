"""Frames with a topic, headers and a time in each row, with nested values, and as Spark's Kafka source has them."""

import json

import pytest
from support.outbox_format import write
from support.sink import Database

from harvest_lib.errors import ConfigError, RecordError
from harvest_lib.spark import errors
from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import Records, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

NESTED = [
    ("map('a', 1, 'b', null)", {"a": 1, "b": None}),
    ("named_struct('a', 1, 'at', timestamp'2023-11-14 22:00:00.5')", {"a": 1, "at": "2023-11-14T22:00:00.5+00:00"}),
    ("array(named_struct('sku', 'x', 'price', 1.50BD), null)", [{"sku": "x", "price": 1.50}, None]),
    ("array(array(1, null), array())", [[1, None], []]),
    ('parse_json(\'{"a": [1, {"b": "ü"}]}\')', {"a": [1, {"b": "ü"}]}),
    ("named_struct('line', 'a\\n\\t\"b\\\\', 'none', null)", {"line": 'a\n\t"b\\', "none": None}),
    ("interval '1' day + interval '2:03:04.5' hour to second", "PT26H3M4.5S"),
    ("interval '-100' hour", "PT-100H"),
    ("array(1e-18BD)", [1e-18]),
    ("to_variant_object(array(double('NaN'), double('-Infinity')))", ["NaN", "-Infinity"]),
    ("to_variant_object(array(timestamp'2023-11-14 22:00:00.5'))", ["2023-11-14T22:00:00.5+00:00"]),
    ("null", None),
    ("map_from_arrays(array(1, 2), array(true, false))", {"1": True, "2": False}),
    ("CAST(null AS STRUCT<a: INT>)", None),
]


@pytest.fixture
def native(dsn):
    database = Database(dsn, "native", "text")
    yield database
    database.connection.close()


@pytest.fixture(autouse=True)
def _registered(spark):
    register(spark)


def test_nested_values_are_json_in_the_default_value_and_by_themselves(spark, native):
    frame = spark.range(3).selectExpr(
        "concat('k', id) AS customer",
        "CAST(id AS INT) AS n",
        *(f"{each} AS c{i}" for i, (each, _) in enumerate(NESTED)),
    )
    write(frame, native.dsn, orderBy="n")
    expected = {f"c{number}": value for number, (_, value) in enumerate(NESTED)}
    assert [json.loads(value) for _, value, _, _ in native.records()] == [
        {"customer": f"k{n}", "n": n} | expected for n in range(3)
    ]
    write(frame.select("customer", "c2"), native.dsn, "alone", value="c2")
    assert [json.loads(value) for _, value, _, _ in native.records()[3:]] == [NESTED[2][1]] * 3


def test_a_nested_value_goes_into_a_json_column_of_the_business_table(spark, native):
    native.ask("CREATE TABLE orders (customer text, lines jsonb)")
    frame = spark.sql("SELECT 'k' AS customer, array(named_struct('sku', 'x', 'n', 2)) AS lines")
    write(frame, native.dsn, table="orders")
    assert native.ask("SELECT customer, lines FROM orders") == [("k", [{"sku": "x", "n": 2}])]
    assert [json.loads(value) for _, value, _, _ in native.records()] == [
        {"customer": "k", "lines": [{"sku": "x", "n": 2}]}
    ]


def test_each_row_has_its_topic_headers_and_time_in_a_single_transaction(spark, native):
    frame = spark.range(6).selectExpr(
        "concat('k', id) AS customer", "concat('t.', id % 2) AS topic", "CAST(id AS INT) AS n",
        "IF(id = 3, null, map('n', CAST(id AS STRING), 'none', null)) AS headers",
        "IF(id = 4, null, timestamp_seconds(id)) AS at",
    )  # fmt: skip
    into = {"topic": "", "topicColumn": "topic", "headersColumn": "headers", "createTimeColumn": "at", "orderBy": "n"}
    write(frame, native.dsn, fixedHeaders='{"kind": "placed"}', **into)
    rows = native.ask("""
        SELECT kafka_key, kafka_topic, kafka_value::json, kafka_header_keys, kafka_header_values,
               extract(epoch FROM create_time)::bigint
        FROM outbox ORDER BY id""")
    for n, (key, topic, value, names, texts, at) in enumerate(rows):
        assert (key, topic, value["n"]) == (f"k{n}", f"t.{n % 2}", n)
        assert sorted(value) == ["at", "customer", "n"]  # neither topic nor headers
        assert (names, texts) == (
            (["kind"], ["placed"]) if n == 3 else (["kind", "n", "none"], ["placed", str(n), None])
        )
        assert at == n if n != 4 else at > 1_000_000_000
    assert native.ask("SELECT count(*), count(DISTINCT transaction_id) FROM outbox") == [(6, 1)]
    assert native.ask("SELECT batch, rows FROM outbox_batches") == [("b", 6)]


def test_a_frame_of_sparks_kafka_source_is_written_as_it_is(spark, native):
    frame = spark.range(3).selectExpr(
        "encode(concat('ü', id), 'utf-8') AS key", "encode(concat('v', id), 'utf-8') AS value", "'orders' AS topic",
        "array(named_struct('key', 'h', 'value', encode('ü', 'utf-8')), "
        "named_struct('key', 'harvest', 'value', X'ff')) AS headers",
    )  # fmt: skip
    write(frame, native.dsn, topic="", topicColumn="topic", key="key", value="value", headersColumn="headers")
    assert sorted(native.records()) == [(f"ü{n}", f"v{n}", ["h"], ["ü"]) for n in range(3)]


def test_topics_and_times_of_rows_go_by_jdbc_too(spark, native):
    frame = spark.range(4).selectExpr(
        "concat('k', id) AS customer", "concat('t', id % 2) AS topic", "timestamp_seconds(id) AS at", "id AS partition"
    )
    records = Records(topic_column="topic", key="customer", create_time_column="at", order_by=["partition"])
    sink(frame, dsn=native.dsn, batch_id="b", records=records)
    found = native.ask("SELECT kafka_topic, extract(epoch FROM create_time)::int FROM outbox ORDER BY id")
    assert found == [("t0", 0), ("t1", 1), ("t0", 2), ("t1", 3)]


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (["customer", "IF(n = 3, 'a b', 't') AS topic"], {"topic": "", "topicColumn": "topic"},
         "1 rows have 'a b' as topic"),
        (["customer", "IF(n = 3, 'ä', 't') AS topic"], {"topic": "", "topicColumn": "topic"},
         "1 rows have 'ä' as topic"),
        (["customer", "IF(n < 3, null, 't') AS topic"], {"topic": "", "topicColumn": "topic"},
         "3 rows have null as topic"),
        (["customer"], {"topicColumn": "customer"}, "a topic and a column of topics were named"),
        (["customer"], {"topic": "", "topicColumn": "topic"}, "(?s)no column 'topic'.*field `topicColumn`"),
        (["customer"], {"headersColumn": "customer"}, r"(?s)headers' column 'customer' is of type string.*map<string"),
        (["customer", "map('h', encode('x', 'utf-16')) AS h"], {"headersColumn": "h"},
         "headers in 'h' cannot be written.*UTF8"),
        (["customer", "n AS at"], {"createTimeColumn": "at"}, "(?s)'at' is integer.*cast it to a timestamp"),
        (["named_struct('a', n) AS customer"], {}, "belongs into the value"),
        (["customer", "named_struct('a', n) AS s"], {"orderBy": "s"}, "(?s)belongs into the value.*field `orderBy`"),
        (["customer", "named_struct('a', encode('x', 'utf-8')) AS s"], {}, "has no place in an outbox"),
        (["customer", "map('h', 'x') AS h"], {"headersColumn": "h", "value": "h"}, "'h' holds the records' headers"),
        (["customer", "encode(customer, 'utf-8') AS raw"], {"value": "raw", "headers": '{"x": "raw"}'},
         "(?s)'raw' holds bytes.*field `header`"),
        (["customer", "encode(customer, 'utf-8') AS raw", "n"], {"value": "raw, n", "orderBy": "raw"},
         "(?s)'raw' holds bytes.*field `value`"),
        (["encode(customer, 'utf-8') AS raw", "n"], {"key": "raw"}, "(?s)'raw' holds bytes.*field `value`"),
        (["customer", "array(now()) AS at"], {"createTimeColumn": "at"}, "holds the records' times"),
        (["customer", "encode(concat('a', char(0)), 'utf-8') AS raw"], {"value": "raw"}, "'raw' has a NUL character"),
        (["customer", "interval '1' month AS i"], {}, "(?s)'i' is of type interval month.*cast it to a string"),
        (["encode(customer, 'utf-16') AS customer", "n"], {"value": "n"}, "'customer' has bytes that are no UTF-8"),
        (["IF(n = 99, null, repeat('k', 10)) AS customer"], {}, "1 rows have null in the key: customer"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_a_record_is_named_and_nothing_is_written(spark, database, change, options, says):
    frame = spark.range(100).selectExpr("concat('c', id) AS customer", "CAST(id AS INT) AS n").selectExpr(*change)
    with pytest.raises(Exception, match=says) as caught:
        write(frame, database.dsn, **options)
    assert isinstance(errors.of(caught.value), ConfigError | RecordError)
    assert database.ask("SELECT count(*) FROM outbox") == [(0,)]


def test_a_key_that_is_too_long_fails_its_task_before_anything_is_promoted(spark, database):
    """It is found in the task: the message speaks of a part of a partition, and no promotion has begun."""
    frame = spark.range(0, 1000, 1, 4).selectExpr("IF(id = 999, repeat('k', 101), 'k') AS customer")
    with pytest.raises(Exception, match="in a part of partition 3, the longest key has 101 characters"):
        write(frame, database.dsn)
    assert database.ask("SELECT count(*) FROM outbox_batches") == [(0,)]


def test_more_columns_than_a_table_takes_are_refused_before_spark_starts(spark, database):
    frame = spark.range(1).selectExpr("'k' AS customer", *(f"id AS c{number}" for number in range(1_594)))
    with pytest.raises(Exception, match="the frame has 1595 columns"):
        write(frame, database.dsn)
    assert database.ask("SELECT to_regclass('outbox_batches')") == [(None,)]


def test_an_outbox_of_bytes_takes_them_and_json(spark, dsn):
    database = Database(dsn, "native", "bytea")
    frame = spark.sql("SELECT 'k' AS customer, encode('ü', 'utf-16') AS raw, map('a', 1) AS m")
    write(frame.select("customer", "raw"), database.dsn, "raw", value="raw")
    write(frame.select("customer", "m"), database.dsn, "m")
    assert [bytes(value) for _, value, _, _ in database.records()] == [
        bytes(frame.first().raw), b'{"customer":"k","m":{"a":1}}',
    ]  # fmt: skip
    database.connection.close()
