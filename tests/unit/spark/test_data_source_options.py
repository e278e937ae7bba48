"""The options of `format("outbox")`: read as a user writes them, and refused before anything is asked of a server."""

import importlib
import json
import sys
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyspark
import pytest

from harvest_lib.errors import ConfigError, OutboxTableError
from harvest_lib.spark.data_source import OutboxDataSource
from harvest_lib.spark.data_source.write_options import WriteOptions, options_named
from harvest_lib.spark.outbox_sink import BatchId, Fixed
from harvest_lib.spark.sink.copying import copy_text
from harvest_lib.spark.sink.staging_tables import Staged
from harvest_lib.spark.tested import require_tested

pytestmark = pytest.mark.quick

BATCH = {"dsn": "host=db user=app", "topic": "orders", "key": "customer", "batchId": "b"}
STREAM = {"dsn": "host=db user=app", "topic": "orders", "key": "customer", "stream": "orders"}


def test_options_are_read_as_spark_hands_them_over():
    given = {
        **BATCH, "KEY": "region, customer", "value": '["a, b", "c"]', "orderby": "at", "password": "canary",
        "headers": json.dumps({"Event-Id": "id"}), "FIXEDHEADERS": json.dumps({"kind": "placed"}),
        "batchheader": "batch", "batchcolumn": "batch", "allowempty": "TRUE", "table": "orders", "queryName": "q",
    }  # fmt: skip
    given.pop("key")
    options = WriteOptions.parse(given, streaming=False)
    assert options.records.key_columns == ("region", "customer")
    assert options.records.value == ["a, b", "c"]
    assert options.records.order_by == ["at"]
    assert options.records.headers == {"Event-Id": "id", "kind": Fixed("placed"), "batch": BatchId()}
    assert (options.name, options.table, options.batch_column, options.outbox) == ("b", "orders", "batch", "outbox")
    assert (options.allow_empty, options.dry_run) == (True, False)
    assert "canary" not in repr(options)


@pytest.mark.parametrize(("value", "means"), [("", None), ("a", "a"), ("a,b", ["a", "b"])])
def test_one_column_is_the_value_and_several_are_an_object(value, means):
    assert WriteOptions.parse(STREAM | {"value": value}, streaming=True).records.value == means


@pytest.mark.parametrize(
    ("change", "streaming", "says"),
    [
        ({"stream": ""}, True, r"(?s)the stream has no name.*field `stream`.*option\(\"stream\", \"orders\"\)"),
        ({"batchId": ""}, False, r"(?s)the batch has no id.*field `batchId`"),
        ({"stream": "a\0b"}, True, "the stream has no name"),
        ({"batchId": "b", "stream": "s"}, True, "a stream has no option batchId"),
        ({"batchId": "b", "stream": "s"}, False, "a batch has no option stream"),
        ({"topic": ""}, True, "the option topic is missing"),
        ({"key": ""}, True, "the option key is missing"),
        ({"topicColumn": "topic"}, True, "a topic and a column of topics were named"),
        ({"topic": "a b"}, True, "cannot name a Kafka topic"),
        ({"oderBy": "at"}, True, r"(?s)no option 'oderby'.*write orderBy"),
        ({"path": "/x"}, True, "(?s)no option 'path'.*use dsn, password"),
        ({"headers": "id"}, True, r"(?s)'id' is not a JSON object.*event-id"),
        ({"headers": '{"id": 1}'}, True, "not a JSON object of texts"),
        ({"value": '["a", 1]'}, True, "not a JSON list of texts"),
        ({"dryRun": "yes"}, True, "neither true nor false"),
        ({"dsn": ""}, True, "(?s)no database was named.*HARVEST_DSN"),
        ({"dsn": "host=db password=canary"}, True, "(?s)the DSN holds a password.*the option password"),
        (
            {"dsn": "postgresql://a:canary@b@c/d"},
            True,
            "the connection string of Postgres cannot be read|the DSN holds a password",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_next_step(change, streaming, says, monkeypatch):
    monkeypatch.delenv("HARVEST_DSN", raising=False)
    given = {**(STREAM if streaming else BATCH), **change}
    with pytest.raises(ConfigError, match=says) as caught, options_named():
        WriteOptions.parse(given, streaming=streaming)
    assert "canary" not in str(caught.value)
    assert "--" not in str(caught.value)


def test_errors_of_the_sink_name_options_as_they_are_here():
    with pytest.raises(OutboxTableError, match=r"name the right one by outbox$"), options_named():
        raise OutboxTableError("none", next_step="name the right one by --outbox")
    with pytest.raises(ConfigError, match="field `orderBy`"), options_named():
        raise ConfigError("none", field="--order-by", next_step="x")


def test_rows_are_lines_of_copy_and_a_slice_has_only_its_own():
    batch = pa.record_batch(
        {
            "text": ["a", None, "\\.\n\t\r", ""],
            "number": pa.array([Decimal("1E-10"), None, Decimal("-1.5"), Decimal(0)], pa.decimal128(38, 10)),
            "bytes": [b"\x00\xff", None, b"", b"a"],
            "list": [['a\\"', None], None, [], ["x"]],
            "at": pa.array([0, None, 1, 2], pa.timestamp("us", "Europe/Paris")),
        }
    )
    lines = [
        '3\t7\ta\t1E-10\t\\\\x00ff\t{"a\\\\\\\\\\\\"",NULL}\t1970-01-01 00:00:00.000000Z\n',
        "3\t8\t\\N\t\\N\t\\N\t\\N\t\\N\n",
        "3\t9\t\\\\.\\n\\t\\r\t-1.5000000000\t\\\\x\t{}\t1970-01-01 00:00:00.000001Z\n",
        '3\t10\t\t0E-10\t\\\\x61\t{"x"}\t1970-01-01 00:00:00.000002Z\n',
    ]
    assert bytes(copy_text(batch, partition=3, first_row=7)).decode() == "".join(lines)
    assert bytes(copy_text(batch.slice(1, 2), partition=3, first_row=8)).decode() == "".join(lines[1:3])


def test_rows_of_a_later_run_are_not_dead_and_those_of_a_week_ago_are():
    run = UUID(int=1_800_000_000_000 << 80 | 7 << 76 | 2 << 62 | 5)
    _, values = Staged(batch="b", run=str(run), named={}).dead()
    week = 7 * 24 * 3_600_000
    assert values["run"] == str(run)
    assert values["oldest"].int >> 80 == 1_800_000_000_000 - week


@pytest.mark.parametrize("version", ["4.0.2", "4.1.3", "4.2.0", "4.3.1", "4.3.0.dev1"])
def test_a_tested_version_of_spark_is_accepted(version):
    require_tested(version)


@pytest.mark.parametrize("version", ["3.5.7", "4.4.0", "5.0.0", "dev"])
def test_another_version_of_spark_is_refused_when_the_format_is_used(version, monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ConfigError, match=f"not tested with Spark {version}") as refused:
        OutboxDataSource({})
    assert "use Spark 4.0 to 4.3" in refused.value.next_step


def test_a_spark_without_data_sources_in_python_is_refused_at_the_import(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "3.5.7")
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    monkeypatch.delitem(sys.modules, "harvest_lib.spark.data_source")
    with pytest.raises(ConfigError, match=r"not tested with Spark 3\.5\.7"):
        importlib.import_module("harvest_lib.spark.data_source")
