"""Promises of the sink without Spark and without Postgres."""

import pytest
from psycopg import sql
from pyspark.sql import types as spark

from harvest_lib.errors import ConfigError
from harvest_lib.local_stack.jars import POSTGRES_JDBC
from harvest_lib.spark.outbox_sink import BatchId, Fixed, Records, foreach_batch, sink
from harvest_lib.spark.sink.columns import staged_columns
from harvest_lib.spark.sink.database import TableColumn, Tables
from harvest_lib.spark.sink.plan import WritePlan
from harvest_lib.spark.sink.staging import next_step_of, sentence_of
from harvest_lib.spark.sink.staging_tables import writer_name
from harvest_lib.spark.sink.statement import Attempt, promotion

pytestmark = pytest.mark.quick


def frame(**types):
    return spark.StructType([spark.StructField(name, kind) for name, kind in types.items()])


def test_tables_beside_one_in_a_schema_with_dots_are_in_that_schema():
    named = Tables.named(business='"my.app".orders', outbox='"my.app"."outbox"')
    found = [each.as_string(None) for each in (named.business, named.outbox, named.staging, named.ledger)]
    assert found == ['"my.app"."orders"', '"my.app"."outbox"', '"my.app"."orders_staging"', '"my.app"."orders_batches"']


@pytest.mark.parametrize("name", ["a.b.c", "", ".", ".a", "a.", "x" * 60, "a\0", '"a.b".' + "x" * 60])
def test_what_cannot_name_a_table_is_refused(name):
    with pytest.raises(ConfigError, match="cannot name a table"):
        Tables.named(business=None, outbox=name)


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250, "größe"])
def test_a_topic_kafka_could_not_have_is_refused(topic):
    with pytest.raises(ConfigError, match="cannot name a Kafka topic"):
        Records(topic=topic, key="k")


@pytest.mark.parametrize("declared", [{"key": ""}, {"key": []}, {"key": "k", "order_by": "at"}])
def test_a_record_without_a_key_or_with_a_text_for_an_order_is_refused(declared):
    with pytest.raises(ConfigError):
        Records(topic="t", **declared)


def test_names_of_the_staging_table_are_kept_out_of_the_way():
    columns = staged_columns(frame(batch=spark.StringType(), ROW=spark.LongType(), n=spark.ArrayType(spark.LongType())))
    assert [(each.name, each.staged, each.type) for each in columns] == [
        ("batch", "batch (frame)", "text"),
        ("ROW", "ROW (frame)", "bigint"),
        ("n", "n", "bigint[]"),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        spark.StructType([spark.StructField("a", spark.LongType()), spark.StructField("A", spark.LongType())]),
        frame(a=spark.MapType(spark.StringType(), spark.StringType())),
        frame(a=spark.ArrayType(spark.BinaryType())),
        frame(a=spark.ArrayType(spark.ArrayType(spark.LongType()))),
        frame(a=spark.NullType()),
        frame(**{'"': spark.LongType()}),
        frame(**{"": spark.LongType()}),
        frame(**{"ü" * 32: spark.LongType()}),
    ],
)
def test_columns_that_cannot_be_staged_are_refused(schema):
    with pytest.raises(ConfigError):
        staged_columns(schema)


def test_names_and_texts_cannot_leave_their_place_in_the_statement():
    hostile = "'; DROP TABLE x; --%s{}"
    name = '"; DROP TABLE x; --%s{}'
    outbox = {each: TableColumn(name=each, type="text") for each in ("kafka_key", "kafka_value")}
    plan = WritePlan(
        tables=Tables.named(business=None, outbox=hostile),
        records=Records(
            topic="t",
            key=hostile,
            value=[hostile],
            headers={hostile: Fixed(hostile), "b": BatchId()},
            order_by=[hostile],
        ),
        columns=staged_columns(frame(**{hostile: spark.StringType()})),
        business={},
        outbox=outbox,
    )
    attempt = Attempt(partition=0, attempt="7", rows=1, hash_sum=0)
    said = promotion(plan, batch=hostile, run=hostile, attempts=[attempt]).as_string(None)
    for quoted in (sql.Identifier(hostile).as_string(None), sql.Literal(hostile).as_string(None)):
        assert quoted in said
        said = said.replace(quoted, "")
    assert "DROP" not in said.replace(sql.Identifier(f"{hostile}_staging").as_string(None), "")
    with pytest.raises(ConfigError):
        staged_columns(frame(**{name: spark.StringType()}))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("x: ERROR: permission denied\n  at y", "ERROR: permission denied"),
        ("lost: [MALFORMED_RECORD.WITHOUT_HINT] bad: [canary,1]",
         "[MALFORMED_RECORD.WITHOUT_HINT]; Spark's log has the details"),
        ("o1.jdbc.\n: java.lang.ClassNotFoundException: org.postgresql.Driver\n at",
         "java.lang.ClassNotFoundException: org.postgresql.Driver; Spark's log has the details"),
        ("o1.jdbc\n: java.io.IOException: canary", "java.io.IOException; Spark's log has the details"),
        ("canary", "RuntimeError"),
    ],
)  # fmt: skip
def test_an_error_of_spark_is_named_without_the_row_it_carries(message, said):
    assert sentence_of(RuntimeError(message)) == said


def test_sessions_of_tasks_are_named_by_table_and_batch_within_what_postgres_keeps():
    names = {writer_name(batch, staging_oid=oid) for batch in ("a", "b" * 500) for oid in (1, 4_294_967_295)}
    assert len(names) == 4
    assert max(map(len, names)) < 64


@pytest.mark.parametrize("batch", ["", "a\0b"])
def test_a_batch_needs_an_id_and_a_stream_a_name(batch):
    with pytest.raises(ConfigError, match="no id"):
        sink(None, dsn="", batch_id=batch, records=Records(topic="t", key="k"))
    with pytest.raises(ConfigError, match="no name"):
        foreach_batch(dsn="", stream="", records=Records(topic="t", key="k"))


def test_a_driver_that_is_missing_is_named_by_its_coordinates():
    (coordinates,) = POSTGRES_JDBC.coordinates
    missing = RuntimeError("calling o44.save.\njava.lang.ClassNotFoundException: org.postgresql.Driver")
    assert f"spark.jars.packages={coordinates}:" in next_step_of(missing)
    assert "spark.jars.packages" not in next_step_of(RuntimeError("ERROR: permission denied for table orders"))
