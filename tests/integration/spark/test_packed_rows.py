"""Reads of an outbox as packed rows: what was written, page by page, in bounded memory, with nothing left open."""

import random

import psycopg
import pytest
from support.waiting import eventually

from harvest_lib.errors import ConfigError, RecordError
from harvest_lib.outbox import append
from harvest_lib.record import PAGE_BYTES, OutboxRecord
from harvest_lib.spark.data_source import outbox_rows
from harvest_lib.spark.data_source.read_options import COLUMNS, ReadOptions, read_schema

pytestmark = [pytest.mark.full]

TEXTS = ("", "a", "straße", "日本", "\U0001f600", "x" * 300, "tab\tline\n", 'quote"comma,{brace}', "NULL", "\\")
SELECTED = """
SELECT id, transaction_id::text::bigint, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,
       kafka_header_values
FROM outbox ORDER BY id
"""
OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
"""


@pytest.fixture
def native(make_outbox):
    return make_outbox(size=1_000, ahead=5)


def batches(dsn, **options):
    given = {"dsn": dsn, **options}
    parsed, schema = ReadOptions.parse(given, streaming=False), read_schema(given)
    for part in outbox_rows.plan_batch(parsed):
        yield from outbox_rows.read(parsed, part, schema)


def rows(dsn, **options):
    return [tuple(row.values()) for batch in batches(dsn, **options) for row in batch.to_pylist()]


def some(count, seed):
    chosen = random.Random(seed)
    for _ in range(count):
        names = [chosen.choice(TEXTS) or "h" for _ in range(chosen.choice((0, 0, 1, 2, 7)))]
        yield OutboxRecord(
            topic=chosen.choice(("orders", "payments")),
            key=chosen.choice(TEXTS)[:100],
            value=chosen.choice((*TEXTS, None, "v" * 9_000)),
            headers=[(name, chosen.choice((*TEXTS, None))) for name in names],
        )


def test_rows_are_what_a_select_returns(native):
    append(native.connection, list(some(2_500, seed=1)))
    expected = native.connection.execute(SELECTED).fetchall()
    assert len(expected) == 2_500
    assert rows(native.dsn) == expected
    for columns in (("id",), ("kafka_value", "id"), ("kafka_header_values",), ("create_time", "kafka_key")):
        places = [COLUMNS.index(each) for each in columns]
        assert rows(native.dsn, columns=",".join(columns)) == [
            tuple(row[place] for place in places) for row in expected
        ]


def test_only_the_topics_that_are_named_are_read(native):
    append(native.connection, list(some(200, seed=2)))
    expected = [row for row in native.connection.execute(SELECTED) if row[3] == "payments"]
    assert 0 < len(expected) < 200
    assert rows(native.dsn, topics="payments") == expected
    assert len(rows(native.dsn, topics="payments, orders", columns="id")) == 200
    assert rows(native.dsn, topics="it's 100%") == []


@pytest.mark.parametrize("size", [PAGE_BYTES // 20, PAGE_BYTES // 2 + 1, 3 * PAGE_BYTES])
def test_a_page_is_limited_in_bytes_where_rows_suddenly_are_large(native, size):
    native.connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE text")
    append(native.connection, [OutboxRecord(topic="t", key="k", value=str(n)) for n in range(900)])
    large = [OutboxRecord(topic="t", key="k", value=random.randbytes(size // 2).hex()) for _ in range(60)]
    append(native.connection, large)
    append(native.connection, [OutboxRecord(topic="t", key="k", value=str(n)) for n in range(900)])
    found = list(batches(native.dsn))
    assert [i for batch in found for i in batch["id"].to_pylist()] == list(range(1, 1_861))
    values = [value for batch in found for value in batch["kafka_value"].to_pylist()]
    assert values[900:960] == [each.value for each in large]
    assert max(batch.nbytes for batch in found) < max(PAGE_BYTES, size) + 200_000


def test_no_transaction_is_open_while_a_page_is_worked_on(native):
    append(native.connection, [OutboxRecord(topic="t", key="k", value="v" * 1_000) for _ in range(6_000)])
    reading = batches(native.dsn)
    next(reading)
    eventually(lambda: native.connection.execute(OPEN).fetchone() == (0,), "the next page was read ahead")
    assert sum(batch.num_rows for batch in reading) > 0


def test_an_array_of_arrays_is_a_failure_that_names_the_record(native):
    native.write(2)
    native.connection.execute("UPDATE outbox SET kafka_header_keys = '{{a},{b}}' WHERE id = 2")
    with pytest.raises(RecordError, match="the record 2 has a value that Spark has no type for"):
        rows(native.dsn)


def test_rows_of_a_pooled_session_with_another_encoding(native):
    """Text is sent in the session's encoding, which is UTF-8 whatever the role or the client has."""
    append(native.connection, [OutboxRecord(topic="t", key="straße", value="日本")])
    name = native.connection.info.dbname
    native.connection.execute(
        psycopg.sql.SQL("ALTER DATABASE {} SET client_encoding = 'LATIN1'").format(psycopg.sql.Identifier(name))
    )
    assert rows(native.dsn, columns="kafka_key,kafka_value") == [("straße", "日本")]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"columns": "id,kafka"}, "has no column 'kafka'"),
        ({"columns": "id,id"}, "no list of different names"),
        ({"columns": ""}, "no list of different names"),
        ({"topics": "a,,b"}, "no list of different names"),
    ],
)
def test_names_that_cannot_be_read_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        ReadOptions.parse({"dsn": "host=h", **options}, streaming=False)
