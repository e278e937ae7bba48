"""The sink on real Spark and real Postgres: any frame, both outbox layouts, bad input, and those who come again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F  # noqa: N812
from support.spark import all_jars
from support.waiting import eventually

from harvest_lib.errors import (
    ConfigError,
    DatabaseAccessDenied,
    DatabaseError,
    DatabaseUnavailable,
    OutboxTableError,
    RecordError,
)
from harvest_lib.outbox import NativeTable, OutboxTable
from infra.local import jars
from infra.local.java import find_java
from infra.local.state import default_state
from spark_jobs import outbox_sink, queries
from spark_jobs.errors import BatchConflict, EmptyBatch, PromotionRefused
from spark_jobs.outbox_sink import BatchId, Fixed, Records, foreach_batch, main, sink
from spark_jobs.promotion import writer_name
from spark_jobs.session import spark_session

pytestmark = pytest.mark.spark

DEADLINE_SECONDS = 150  # a Spark of its own may have to start on a busy machine
ORDERS = """
CREATE TYPE mood AS ENUM ('fair', 'foul');
CREATE TABLE orders (
    number bigserial PRIMARY KEY, id uuid NOT NULL, customer varchar(20), price numeric(10, 2), "%d of" jsonb,
    mood mood, at timestamptz, batch text NOT NULL, since timestamptz NOT NULL DEFAULT clock_timestamp())
"""
RECORDS = Records(topic="orders", key="customer")
BATCH = 'b%s\'1 \\ of\t"2"; -c ü'


@pytest.fixture(scope="module")
def jdbc_jar():
    java_home = find_java(default_state())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home))
        yield jars.resolve(jars.POSTGRES_JDBC, default_state(), java_home)[0]


@pytest.fixture(scope="module")
def spark(jdbc_jar, tmp_path_factory):
    with spark_session(jars=all_jars(), work_folder=tmp_path_factory.mktemp("spark")) as session:
        yield session


class Database:
    """A database with an outbox, to be looked at."""

    def __init__(self, dsn, layout="goharvest", value_type="varchar"):
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        table = OutboxTable.parse("outbox")
        if layout == "native":
            NativeTable(outbox=table, segment_size=100, value_type=value_type).create(self.connection)
        else:
            table.create(self.connection)

    def ask(self, statement, *values):
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def records(self):
        return self.ask("SELECT kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox ORDER BY id")

    def counts(self, beside="outbox"):
        count = "SELECT count(*) FROM {}"
        tables = (*dict.fromkeys(("outbox", beside)), f"{beside}_staging", f"{beside}_batches")
        return {
            name: self.ask(sql.SQL(count).format(sql.Identifier(name)))[0][0]
            for name in tables
            if self.ask("SELECT to_regclass(%s)", name)[0][0]
        }


@pytest.fixture
def database(dsn):
    made = Database(dsn)
    yield made
    made.connection.close()


@pytest.fixture
def orders(database):
    database.connection.execute(ORDERS)
    return database


@pytest.fixture
def frame(spark):
    """A hundred orders of seven customers in four partitions, in no order."""
    return spark.range(0, 100, 1, 4).select(
        F.expr("concat('c', id % 7)").alias("customer"),
        F.expr("(id * 37) % 100").cast("int").alias("place"),
        F.concat(F.lit("order "), "id").alias("text"),
    )


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


def left_behind(database, batch, *, connection=None):
    """Stage a row as a task of another run would."""
    (connection or database.connection).execute(
        "INSERT INTO outbox_staging (batch, run, partition, row, row_hash) VALUES (%s, 'dead', 0, 0, 0)", (batch,)
    )


def test_what_the_dead_have_staged_is_swept_and_what_the_living_stage_is_not(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    with psycopg.connect(database.dsn, autocommit=True) as living:
        living.execute(queries.TRY_LOCK_BATCH, {"batch": "living", "ledger": "outbox_batches"})
        for batch in ("1", "living", "dead"):
            left_behind(database, batch)
        sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS)
        assert database.ask("SELECT batch FROM outbox_staging") == [("living",)]
        with pytest.raises(OutboxTableError, match="holds rows of a batch with other columns"):
            sink(frame.drop("text"), dsn=database.dsn, batch_id="3", records=RECORDS)
    sink(frame.drop("text"), dsn=database.dsn, batch_id="3", records=RECORDS)
    assert database.counts() == {"outbox": 300, "outbox_staging": 0, "outbox_batches": 3}


def test_a_task_that_commits_after_the_others_is_ended_before(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    ((oid,),) = database.ask("SELECT 'outbox_staging'::regclass::oid::bigint")
    late = psycopg.connect(database.dsn, application_name=writer_name("2", staging_oid=oid))
    left_behind(database, "2", connection=late)
    sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS)
    with pytest.raises(psycopg.OperationalError):
        late.commit()
    late.close()
    assert database.counts() == {"outbox": 200, "outbox_staging": 0, "outbox_batches": 2}


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
        (lambda f: f.withColumn("text", F.lit("a\0b")), RECORDS, DatabaseError, "invalid byte sequence"),
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


def test_rows_that_vanish_from_the_staging_table_are_missed(database, frame, monkeypatch):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    database.connection.execute("""
        CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF new.row = 3 THEN RETURN NULL; END IF; RETURN new; END';
        CREATE TRIGGER swallow BEFORE INSERT ON outbox_staging FOR EACH ROW EXECUTE FUNCTION swallow()""")
    with pytest.raises(PromotionRefused, match="of partition 0, only 24 rows are staged"):
        sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS)
    assert database.counts()["outbox"] == 100


def test_a_batch_that_vanishes_altogether_is_not_taken_for_an_empty_one(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    database.connection.execute("""
        CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER swallow BEFORE INSERT ON outbox_staging FOR EACH ROW EXECUTE FUNCTION swallow()""")
    with pytest.raises(PromotionRefused, match=r"Spark computed 100 rows, .*; nothing is staged"):
        sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS, allow_empty=True)


def test_a_task_that_has_not_committed_yet_keeps_its_staging_table(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    with psycopg.connect(database.dsn) as task:
        left_behind(database, "2", connection=task)
        with pytest.raises(OutboxTableError, match="holds rows of a batch with other columns"):
            sink(frame.drop("text"), dsn=database.dsn, batch_id="3", records=RECORDS)
    assert database.ask("SELECT batch FROM outbox_staging") == [("2",)]


def test_a_business_row_that_vanishes_keeps_the_batch_back(orders, frame):
    orders.connection.execute("""
        CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF new.customer = ''c3'' THEN RETURN NULL; END IF; RETURN new; END';
        CREATE TRIGGER swallow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION swallow()""")
    rows = frame.select("customer", F.lit("f47ac10b-58cc-4372-a567-0e02b2c3d479").alias("id"))
    with pytest.raises(PromotionRefused, match="86 rows reached the business table"):
        sink(rows, dsn=orders.dsn, batch_id="b", records=RECORDS, table="orders", batch_column="batch")
    counts = orders.counts("orders")
    assert (counts["orders"], counts["outbox"], counts["orders_batches"]) == (0, 0, 0)


def write_orders(folder: Path, number: int) -> None:
    lines = [json.dumps({"customer": f"c{i % 7}", "n": number * 10 + i}) for i in range(10)]
    file = folder / f"{number:02}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    os.utime(file, (number, number))  # Spark reads files in the order of their times


class Stream:
    """A stream of files, a file a batch, that ends when it has read them all."""

    def __init__(self, spark, database, folder):
        self.spark, self.database = spark, database
        self.files, self.checkpoint = folder / "files", folder / "checkpoint"
        self.files.mkdir()
        self.write = foreach_batch(
            dsn=database.dsn, stream="orders", records=Records(topic="orders", key="customer", order_by=["n"])
        )

    def run(self, write=None):
        frame = self.spark.readStream.schema("customer string, n int").option("maxFilesPerTrigger", 1)
        started = frame.json(str(self.files)).writeStream.foreachBatch(write or self.write)
        query = started.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def numbers(self):
        return [json.loads(value)["n"] for _, value, _, _ in self.database.records()]


def test_a_stream_that_starts_again_promotes_each_batch_once(spark, database, tmp_path):
    stream = Stream(spark, database, tmp_path)
    for number in range(3):
        write_orders(stream.files, number)

    def and_fail(frame, number):
        stream.write(frame, number)
        if number == 1:
            raise RuntimeError("after the promotion, before the checkpoint")

    with pytest.raises(Exception, match="before the checkpoint"):
        stream.run(and_fail)
    assert stream.numbers() == list(range(20))
    write_orders(stream.files, 3)
    stream.run()
    assert stream.numbers() == list(range(40))
    assert database.ask("SELECT batch FROM outbox_batches ORDER BY promoted_at") == [
        (f"orders:{number}",) for number in range(4)
    ]
    assert database.counts() == {"outbox": 40, "outbox_staging": 0, "outbox_batches": 4}


def test_a_stream_that_lost_its_checkpoint_is_refused(spark, database, tmp_path):
    stream = Stream(spark, database, tmp_path)
    write_orders(stream.files, 0)
    stream.run()
    stream.checkpoint.rename(tmp_path / "lost")
    (stream.files / "00.jsonl").unlink()
    write_orders(stream.files, 1)
    with pytest.raises(Exception, match="orders:0 was promoted before, with other data"):
        stream.run()
    assert stream.numbers() == list(range(10))


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_the_command_line_reads_files(ending, frame, database, jdbc_jar, tmp_path, capsys):
    file = tmp_path / f"orders.{ending}"
    frame.write.option("header", "true").format(ending.removesuffix("l")).save(str(file))
    arguments = [str(file), "--dsn", database.dsn, "--batch-id", "b", "--topic", "orders", "--key", "customer"]
    arguments += ["--header", "place=place", "--fixed-header", "kind=new", "--batch-header", "batch"]
    arguments += ["--order-by", "place", "--value", "place", "--value", "text", "--jdbc-jar", str(jdbc_jar)]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "promoted"
    assert [json.loads(value)["place"] for _, value, _, _ in database.records()] == list(range(100))
    assert database.records()[7][2:] == (["place", "kind", "batch"], ["7", "new", "b"])
    assert main(arguments) == 0
    assert "already-promoted" in capsys.readouterr().out
    database.connection.execute("UPDATE outbox_batches SET rows = 99")
    assert main(arguments) == 8


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nowhere.parquet"], 3, "cannot be read"),
        (["orders.txt"], 3, "--format"),
        (["orders.jsonl", "--schema", "customer nonsense"], 3, "cannot be read"),
        (["orders.jsonl", "--header", "place"], 3, "NAME="),
        (["orders.jsonl", "--topic", "a b"], 3, "cannot name a Kafka topic"),
        (["orders.jsonl", "--schema", "customer string, place boolean", "--batch-id", "c"], 5, "CANNOT_PARSE"),
        (["orders.jsonl", "--outbox", "events"], 4, "does not exist"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    arguments, code, says, spark, database, jdbc_jar, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.jsonl").write_text('{"customer": "c1", "place": "canary"}\n')
    file, *more = arguments
    base = [str(tmp_path / file), "--dsn", database.dsn, "--batch-id", "b", "--topic", "t", "--key", "customer"]
    assert main([*base, "--jdbc-jar", str(jdbc_jar), *more]) == code
    assert says in (said := capsys.readouterr().err)
    assert "canary" not in said
    assert database.counts()["outbox"] == 0


def test_a_driver_killed_between_staging_and_promotion_is_made_good(database, frame, jdbc_jar, tmp_path):
    frame.write.json(str(tmp_path / "orders.jsonl"))
    command = [sys.executable, "-m", "spark_jobs.outbox_sink", str(tmp_path / "orders.jsonl"), "--dsn", database.dsn]
    command += ["--batch-id", "b", "--topic", "orders", "--key", "customer", "--jdbc-jar", str(jdbc_jar)]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    with psycopg.connect(database.dsn) as holder:
        holder.execute(queries.LOCK_OUTBOX, {"outbox": "outbox"})
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as driver:
            try:
                eventually(lambda: waits_for_the_outbox(database) or driver.poll() is not None, DEADLINE_SECONDS)
            finally:
                driver.kill()
        assert driver.returncode == -signal.SIGKILL
    assert database.counts() == {"outbox": 0, "outbox_staging": 100, "outbox_batches": 0}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}


def waits_for_the_outbox(database):
    return database.ask("""
        SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database
        WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()""")
