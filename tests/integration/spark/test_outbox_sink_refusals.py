"""Refusals of the sink: rows, columns, tables and servers that will not do. It names them, and promotes nothing."""

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F
from support.sink import RECORDS, Database, swallow

from harvest_lib.errors import (
    ConfigError,
    DatabaseAccessDenied,
    DatabaseError,
    DatabaseUnavailable,
    OutboxTableError,
    RecordError,
)
from harvest_lib.spark import outbox_sink
from harvest_lib.spark.errors import EmptyBatch
from harvest_lib.spark.outbox_sink import Records, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.mark.parametrize(
    ("change", "records", "error", "says"),
    [
        (lambda f: f.withColumn("customer", F.expr("nullif(customer, 'c3')")), RECORDS, RecordError,
         "14 rows have null in the key: customer"),
        (lambda f: f.withColumn("customer", F.repeat("customer", 60)), RECORDS, RecordError,
         "the longest key has 120 characters, kafka_key takes 100"),
        (lambda f: f.withColumn("text", F.repeat("text", 2_000)), Records(topic="t", key="customer", value="text"),
         RecordError, "the longest value has 16000 characters, kafka_value takes 10000"),
        (lambda f: f.where("false"), RECORDS, EmptyBatch, "Spark computed 0 rows"),
        (lambda f: f, Records(topic="t", key="client"), ConfigError, "no column 'client'"),
        (lambda f: f, Records(topic="t", key="customer", order_by=["when"]), ConfigError, "no column 'when'"),
        (lambda f: f.withColumn("m", F.create_map(F.lit(1), F.lit(2))), RECORDS, ConfigError, "map<int,int>"),
        (lambda f: f.withColumn("v", F.encode("text", "utf8")), RECORDS, ConfigError, "'v' holds bytes"),
        (lambda f: f.withColumn("x" * 64, F.lit(1)), RECORDS, ConfigError, "cannot name a column"),
        (lambda f: f.withColumn("text", F.when(f.customer == "c3", F.lit("a\0b"))), RECORDS, RecordError,
         "14 rows have a NUL character in 'text'"),
        (lambda f: f.withColumn("texts", F.array(F.lit("\0"))), RECORDS, RecordError,
         "100 rows have a NUL character in 'texts'"),
        (lambda f: f.withColumn("text", F.raise_error(F.lit("canary")).cast("string")), RECORDS, DatabaseError,
         "[USER_RAISED_EXCEPTION]"),
    ],
)  # fmt: skip
def test_bad_rows_are_told_and_nothing_is_promoted(database, frame, change, records, error, says):
    with pytest.raises(error) as caught:
        sink(change(frame), dsn=database.dsn, batch_id="b", records=records)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value)
    assert caught.value.next_step
    counts = database.counts()
    assert (counts["outbox"], counts.get("outbox_batches", 0)) == (0, 0)
    assert sink(frame, dsn=database.dsn, batch_id="b", records=RECORDS).status == "promoted"
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}


def test_a_nul_is_named_through_the_driver_too(dsn, frame):
    database = Database(dsn, "native")
    records = Records(topic="t", key="customer", value="text")
    spoiled = frame.withColumn("text", F.when(F.col("customer") == "c3", F.lit("\0")).otherwise(F.col("text")))
    with pytest.raises(RecordError, match="14 rows have a NUL character in 'text'"):
        sink(spoiled, dsn=database.dsn, batch_id="b", records=records, through="driver")
    assert sink(frame, dsn=database.dsn, batch_id="b", records=records, through="driver").status == "promoted"


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            lambda f: f.withColumn("price", F.lit("dear")),
            ConfigError,
            "'price' is text in the frame and numeric(10,2) in",
        ),
        (lambda f: f.withColumn("price", F.lit(1.5)), ConfigError, "'price' is double precision in the frame"),
        (lambda f: f.withColumn("at", F.lit(1)), ConfigError, "'at' is integer in the frame"),
        (lambda f: f.drop("id"), ConfigError, "requires a column 'id'"),
        (lambda f: f.withColumn("extra", F.lit(1)), ConfigError, "'extra' has no place"),
        (lambda f: f.withColumn("batch", F.lit("x")), ConfigError, "'batch' cannot take the batch's id"),
        (lambda f: f.withColumn("id", F.lit("no uuid")), DatabaseError, "invalid input syntax for type uuid"),
        (lambda f: f.withColumn("id", F.expr("nullif(id, id)")), RecordError, "table orders"),
        (lambda f: f.withColumn("customer", F.repeat("customer", 11)), RecordError, "character varying(20)"),
        (lambda f: f.withColumn("price", F.lit(10**9).cast("decimal(20,0)")), DatabaseError, "numeric field overflow"),
    ],
)
def test_what_the_business_table_does_not_take_is_told(orders, frame, change, error, says):
    good = frame.select("customer", F.lit("f47ac10b-58cc-4372-a567-0e02b2c3d479").alias("id"))
    records = Records(topic="t", key="customer", value="customer")
    arguments = {"dsn": orders.dsn, "batch_id": "b", "table": "orders", "batch_column": "batch", "records": records}
    with pytest.raises(error) as caught:
        sink(change(good), **arguments)
    assert says in str(caught.value)
    assert "'c3'" not in str(caught.value)
    counts = orders.counts("orders")
    assert (counts["outbox"], counts["orders"], counts.get("orders_batches", 0)) == (0, 0, 0)
    assert sink(good, **arguments).status == "promoted"


def test_what_is_not_there_or_of_another_make_is_told(orders, frame):
    arguments = {"dsn": orders.dsn, "batch_id": "b", "records": RECORDS}
    with pytest.raises(OutboxTableError, match=r"(?s)\"events\" does not exist.*harvest init"):
        sink(frame, outbox="events", **arguments)
    with pytest.raises(OutboxTableError, match="not an outbox table"):
        sink(frame, outbox="orders", **arguments)
    with pytest.raises(ConfigError, match='the business table "order" does not exist'):
        sink(frame, table="order", **arguments)
    orders.connection.execute("CREATE TABLE outbox_staging (batch text, customer text)")
    with pytest.raises(OutboxTableError, match=r"(?s)not of this version.*attempt.*DROP TABLE \"outbox_staging\""):
        sink(frame, **arguments)
    orders.connection.execute("DROP TABLE outbox_staging")
    assert sink(frame, **arguments).status == "promoted"


def test_postgres_that_is_away_or_refuses_us_is_told_without_the_password(database, frame):
    away = make_conninfo(database.dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=1, password="canary")
    with pytest.raises(DatabaseUnavailable):
        sink(frame, dsn=away, batch_id="b", records=RECORDS)
    with pytest.raises(DatabaseAccessDenied) as caught:
        sink(frame, dsn=make_conninfo(database.dsn, user="nobody", password="canary"), batch_id="b", records=RECORDS)
    assert "canary" not in str(caught.value)


def test_a_driver_that_tasks_cannot_reach_postgres_from_is_told_without_the_password(database, frame, monkeypatch):
    real = outbox_sink.jdbc_target

    def elsewhere(connection, tables):
        target = real(connection, tables)
        wrong = dict(target.properties) | {"user": "nobody", "password": "canary"}
        return type(target)(url=target.url, table=target.table, oid=target.oid, properties=wrong)

    monkeypatch.setattr(outbox_sink, "jdbc_target", elsewhere)
    with pytest.raises(DatabaseError, match="nobody") as caught:
        sink(frame, dsn=database.dsn, batch_id="b", records=RECORDS)
    assert "canary" not in str(caught.value)


def test_a_ledger_that_takes_no_row_is_told(database, frame):
    sink(frame, dsn=database.dsn, batch_id="a", records=RECORDS)
    swallow(database.connection, "outbox_batches")
    with pytest.raises(DatabaseError, match="takes no row"):
        sink(frame, dsn=database.dsn, batch_id="b", records=RECORDS)
    assert database.counts()["outbox"] == 100


def test_collated_columns_are_staged(database, frame):
    """By JDBC, which knows no collations of Spark's."""
    collated = frame.withColumn("text", F.collate("text", "UNICODE_CI"))
    records = Records(topic="t", key="customer", value="text")
    assert sink(collated, dsn=database.dsn, batch_id="b", records=records).rows == 100
    assert {value for _, value, _, _ in database.records()} == {row.text for row in frame.collect()}
