"""Reads of an outbox as packed rows: what was written, page by page, in bounded memory, with nothing left open."""

import itertools
import random
import tracemalloc
from threading import Thread

import psycopg
import pytest
from support.outbox_source import without_password
from support.waiting import eventually

from harvest_lib.errors import ConfigError, RecordError
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.record import PAGE_BYTES, OutboxRecord
from harvest_lib.source import Selection, batch_source, server_identity
from harvest_lib.source.packed_window import PackedWindow
from harvest_lib.spark.data_source import outbox_rows
from harvest_lib.spark.data_source.read_options import COLUMNS, ReadOptions, read_schema
from harvest_lib.spark.data_source.windows import HIGHEST_ID, LOWEST_ID, NOTHING, OutboxPartition, Window

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


WAITING = """
SELECT count(*) FROM pg_locks
WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
GENERIC = "SELECT coalesce(sum(generic_plans), 0) FROM pg_prepared_statements WHERE statement LIKE '%record_send%'"
FETCHED = "SELECT sum(idx_tup_fetch + seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'outbox%'"


def fetched(connection):
    """Return how many rows of the outbox were fetched by sessions that have ended."""
    connection.execute("SELECT pg_stat_clear_snapshot()")
    return connection.execute(FETCHED).fetchone()[0]


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


@pytest.mark.parametrize("shards", ["2", "7", "1000"])
def test_parts_of_a_segment_are_ranges_of_its_ids(native, shards):
    append(native.connection, list(some(500, seed=3)))
    native.connection.execute("DELETE FROM outbox WHERE id % 5 = 0 OR id BETWEEN 100 AND 250")
    parsed = ReadOptions.parse({"dsn": native.dsn, "shards": shards}, streaming=False)
    ranges = [(part.windows[0].first, part.windows[0].last) for part in outbox_rows.plan_batch(parsed)]
    assert 2 <= len(ranges) <= int(shards)
    assert all(last + 1 == first for (_, last), (first, _) in itertools.pairwise(ranges))
    expected = [row[0] for row in native.connection.execute("SELECT id FROM outbox ORDER BY id")]
    assert [i for batch in batches(native.dsn, shards=shards) for i in batch["id"].to_pylist()] == expected
    native.write(3)
    assert rows(native.dsn, shards=shards, columns="id")[-3:] == [(501,), (502,), (503,)]


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


def test_a_reader_that_is_closed_does_not_wait_for_the_page_read_ahead(make_outbox, monkeypatch):
    monkeypatch.setitem(batch_source._SETTINGS, "lock_timeout", "0")  # so that only the reader ends its statement
    native = make_outbox(size=20_000)
    append(native.connection, [OutboxRecord(topic="t", key="k", value="v" * 1_000) for _ in range(9_000)])
    reading = batches(native.dsn)
    next(reading)
    eventually(lambda: native.connection.execute(OPEN).fetchone() == (0,), "the second page was read ahead")
    with psycopg.connect(native.dsn) as other:
        other.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        next(reading)  # the third page, which is read ahead meanwhile, waits for the lock
        eventually(lambda: other.execute(WAITING).fetchone() == (1,), "the next page is read")
        closing = Thread(target=reading.close)
        closing.start()
        eventually(lambda: not closing.is_alive(), "the reader is closed while the lock is held")
        assert other.execute(WAITING).fetchone() == (0,)


def test_each_page_has_a_plan_of_its_own(make_outbox):
    native = make_outbox(size=50_000)
    append(native.connection, [OutboxRecord(topic="t", key="k", value="v" * 1_000) for _ in range(20_000)])
    place = server_identity.place(native.connection).as_json()
    window = Window(prev=NOTHING, cur=native.snapshot(), first=LOWEST_ID, last=HIGHEST_ID, server=place)
    source = PackedWindow(native.dsn, Selection(table=native.table.identifier))
    source.open(window.position)
    try:
        assert len(list(source.pages(["id", "kafka_value"]))) > 8, "more pages than Postgres plans a statement for"
        (generic,) = source._connected().execute(GENERIC).fetchone()
    finally:
        source.close()
    assert generic == 0


def test_large_rows_are_in_memory_one_at_a_time(native):
    native.connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE text")
    size = 5 * PAGE_BYTES
    for _ in range(4):
        append(native.connection, [OutboxRecord(topic="t", key="k", value="v" * size)])
    tracemalloc.start()
    try:
        assert [batch.num_rows for batch in batches(native.dsn)] == [1, 1, 1, 1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < peak < 1.5 * size


def test_null_headers_count_in_the_size_of_a_page(native):
    names = [f"h{n}" for n in range(2_000)]
    append(native.connection, [OutboxRecord(topic="t", key="k", value="v", headers=dict.fromkeys(names))] * 600)
    found = list(batches(native.dsn))
    assert sum(batch.num_rows for batch in found) == 600
    assert max(batch.num_rows for batch in found) * 4 * 2 * len(names) < 1.5 * PAGE_BYTES


def test_a_filter_that_leaves_few_rows_reads_the_others_once(native):
    append(
        native.connection, [OutboxRecord(topic="rare" if n > 890 else "often", key="k", value="v") for n in range(900)]
    )
    before = fetched(native.connection)
    assert len(rows(native.dsn, topics="rare")) == 9
    eventually(lambda: fetched(native.connection) >= before + 900, "the statistics came")
    assert fetched(native.connection) - before < 1_000


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


def test_ids_of_four_bytes_and_times_beyond_those_of_spark(dsn, tmp_path):
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        connection.execute("ALTER TABLE outbox ALTER id TYPE integer")
        append(connection, [OutboxRecord(topic="t", key="k", value=str(n)) for n in range(3)])
        connection.execute("UPDATE outbox SET create_time = '294276-12-31' WHERE id = 2")
    given = without_password(dsn, tmp_path)
    assert rows(given, columns="id") == [(1,), (2,), (3,)]
    assert [time is None for (time,) in rows(given, columns="create_time")] == [False, True, False]


def test_ids_far_from_each_other_and_arrays_of_many_elements(native):
    many = {f"h{n}": "v" * (n % 3) for n in range(700)}
    append(
        native.connection,
        [OutboxRecord(topic="t", key="k", value="v", headers=many if n % 9 else {}) for n in range(60)],
    )
    native.connection.execute("UPDATE outbox SET id = -70 * id")
    expected = native.connection.execute(SELECTED).fetchall()
    assert expected[0][0] < 0
    assert rows(native.dsn) == expected


def test_rows_of_a_transaction_that_was_open_cost_no_scan_of_all_others(native):
    """A stream reads a window from its own lowest id on, and the late rows by their transaction."""
    native.write(900)
    with psycopg.connect(native.dsn) as late:
        native.write(2, late)
        start = native.snapshot()
        late.commit()
    native.write(3)
    place = server_identity.place(native.connection).as_json()
    window = Window(prev=start, cur=native.snapshot(), first=LOWEST_ID, last=HIGHEST_ID, server=place)
    part = OutboxPartition(windows=(window,), floor=LOWEST_ID, below=None)
    given = {"dsn": native.dsn}
    before = fetched(native.connection)
    read = outbox_rows.read(ReadOptions.parse(given, streaming=True), part, read_schema(given))
    assert [i for batch in read for i in batch["id"].to_pylist()] == [901, 902, 903, 904, 905]
    eventually(lambda: fetched(native.connection) > before, "the statistics came")
    assert fetched(native.connection) - before < 100


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"topics": "a\0"}, "no list of different names"),
        ({"columns": "id,kafka"}, "has no column 'kafka'"),
        ({"columns": "id,id"}, "no list of different names"),
        ({"columns": ""}, "no list of different names"),
        ({"topics": "a,,b"}, "no list of different names"),
    ],
)
def test_names_that_cannot_be_read_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        ReadOptions.parse({"dsn": "host=h", **options}, streaming=False)
