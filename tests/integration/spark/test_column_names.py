"""Columns of a frame whose names are those of the sink's own tables, aliases and keywords: every value arrives."""

import json

import pytest
from support.outbox_format import write
from support.sink import Database
from support.spark import session

from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import Records, sink
from harvest_lib.spark.sink.records import BatchId

pytestmark = [pytest.mark.gate, pytest.mark.spark]

NAMES = [
    *("v", "r", "s", "o", "chosen", "written", "recorded", "attempts"),  # of the promotion
    *("batch", "run", "partition", "attempt", "row", "row_hash", "row (frame)", "row (frame)_"),  # of staging
    *("key", "value", "header_0", "rows", "hash_sum", "data", "_ROW", "outbox_sink.batch"),  # of Spark's frames
    *("xmin", "ctid", "tableoid", "select", "user", "kafka_key", "kafka_value", "id", "create_time"),
    *("Upper", "with.dot", "with blank", "it's", "100%s", "back`tick", "{braces}", "ü", "a,b", "$1", ":name", "\\"),
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with session(tmp_path_factory.mktemp("spark")) as made:
        register(made)
        yield made


@pytest.fixture
def native(dsn):
    database = Database(dsn, "native")
    yield database
    database.connection.close()


@pytest.fixture
def frame(spark):
    return spark.createDataFrame([[f"{name} of {row}" for name in NAMES] for row in range(3)], NAMES)


EXPECTED = [{name: f"{name} of {row}" for name in NAMES} for row in range(3)]


def found(database):
    return sorted((json.loads(value) for _, value, _, _ in database.records()), key=lambda each: each["v"])


@pytest.mark.full
@pytest.mark.parametrize("name", ["v", "row", "with.dot"])
def test_a_record_has_every_column_by_its_name(frame, database, name):
    records = Records(topic="t", key=name, headers={"of": name, "batch": BatchId()})
    sink(frame, dsn=database.dsn, batch_id="b", records=records)
    assert found(database) == EXPECTED
    assert sorted((key, values[0]) for key, _, _, values in database.records()) == [
        (each[name], each[name]) for each in EXPECTED
    ]


@pytest.mark.full
def test_the_format_has_every_column_too(frame, database):
    write(frame, database.dsn, key="v")
    assert found(database) == EXPECTED


@pytest.mark.full
@pytest.mark.parametrize("name", ["v", "_ROW", "key", "value", "row_hash", "header_0"])
def test_the_driver_takes_such_a_column_as_the_value(frame, native, name):
    records = Records(topic="t", key="key", value=name, headers={"of": name})
    sink(frame, dsn=native.dsn, batch_id="b", records=records, through="driver")
    assert sorted(value for _, value, _, _ in native.records()) == [each[name] for each in EXPECTED]


@pytest.mark.full
def test_a_business_table_takes_them_too(frame, database):
    columns = ", ".join('"' + name + '" text' for name in NAMES if name not in {"xmin", "ctid", "tableoid"})
    database.ask(f"CREATE TABLE business ({columns})")
    chosen = frame.drop("xmin", "ctid", "tableoid")
    sink(chosen, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="v", value="o"), table="business")
    (row,) = database.ask('SELECT v, r, s, o, "row", batch, "with.dot" FROM business WHERE v = \'v of 1\'')
    assert row == tuple(f"{name} of 1" for name in ("v", "r", "s", "o", "row", "batch", "with.dot"))
