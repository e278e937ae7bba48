"""The native table on a real Postgres: its definition, the rights to use it, and that nothing there is changed."""

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import sql
from support.outbox import harvest_config, read_topic, steps_back
from support.parking import Parking
from support.psql import psql

from harvest_lib.errors import OutboxTableError, RecordError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import Load, NativeTable, OutboxTable, append, pump
from harvest_lib.outbox.native_table import create_beside
from harvest_lib.outbox.parking import ParkedRecords, ParkedSelection
from harvest_lib.record import OutboxRecord
from harvest_lib.source import MarkSource

pytestmark = pytest.mark.gate

NAMES = ["outbox", 'Mixed "Case"', "100%s %(x)s %", "{table}", "billing.Outbox", "n" * 49]


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def record(key="k", value="v"):
    return OutboxRecord(topic="orders", key=key, value=value)


@pytest.mark.parametrize("name", NAMES)
def test_a_native_table_takes_records_that_a_mark_source_harvests(dsn, connection, name):
    connection.execute("CREATE SCHEMA billing")
    table = OutboxTable.parse(name)
    assert NativeTable(outbox=table, segment_size=3).create(connection)
    assert not NativeTable(outbox=table).create(connection)
    ParkedRecords(table).create(connection)
    table.check(connection)
    table.check_native(connection)
    assert (table.kind(connection), table.value_type(connection)) == ("native", "text")
    append(connection, [record(f"k{n}") for n in range(20)], table=name)
    source = MarkSource(dsn, table.identifier, table.parked.identifier)
    source.open(uuid.uuid4())
    first = source.fetch(15)
    assert [row[0] for row in first.rows] == list(range(1, 16))
    second = source.fetch(15, [row[0] for row in first.rows])
    assert [row[0] for row in second.rows] == list(range(16, 21))
    source.reset([16])
    assert [row[0] for row in source.fetch(15).rows] == [16]
    source.close()
    assert connection.execute(sql.SQL("SELECT count(*) FROM {}").format(table.identifier)).fetchone() == (5,)


RAW = [b"\x00\xff", b"", b"\\x41", None]


def test_bytes_go_in_and_come_out_as_they_are(dsn, connection):
    table = OutboxTable.parse("outbox")
    NativeTable(outbox=table, value_type="bytea").create(connection)
    ParkedRecords(table).create(connection)
    append(connection, [record(value=value) for value in RAW])
    Parking(connection, ParkedRecords(table)).move(3)
    ParkedRecords(table).retry(connection, ParkedSelection())
    source = MarkSource(dsn, table.identifier, table.parked.identifier)
    source.open(uuid.uuid4())
    assert [row[3] for row in source.fetch(10).rows] == RAW
    source.close()


@pytest.mark.parametrize(("column", "value", "named"), [("bytea", "\\x41", "bytes"), ("text", b"A", "str")])
def test_values_of_the_other_type_are_refused(connection, column, value, named):
    """Text that looks like bytes spelled out would be taken for them."""
    NativeTable(outbox=OutboxTable.parse("outbox"), value_type=column).create(connection)
    with pytest.raises(OutboxTableError, match=named):
        append(connection, [record(value=value)])
    with pytest.raises(RecordError, match="some are bytes"):
        append(connection, [record(value="a"), record(value=b"a")])


@pytest.mark.parametrize("value_type", ["varchar", "bytea"])
def test_a_harvest_of_a_native_table(dsn, connection, bootstrap_servers, make_topic, group_id, value_type):
    topic, table = make_topic(partitions=2, **{"max.message.bytes": 20_000}), OutboxTable.parse("outbox")
    NativeTable(outbox=table, value_type=value_type, segment_size=100).create(connection)
    load = Load(topic=topic, keys=5, records=700, headers=2)
    assert list(pump(connection, table, load, dice=random.Random(1), stopping=threading.Event()))[-1] == 700
    if value_type == "bytea":  # one that is too large, after a look at its size
        append(connection, [OutboxRecord(topic=topic, key="large", value=b"x" * 40_000)])
    assert Harvest(harvest_config(dsn, bootstrap_servers, group_id)).drain(60).records == 700
    delivered = read_topic(bootstrap_servers, topic)
    assert sorted(each.outbox_id for each in delivered) == list(range(1, 701))
    assert steps_back(delivered) == 0
    assert all(each.value.startswith("value-") for each in delivered)
    parked = connection.execute("SELECT held FROM outbox_parked_ids").fetchall()
    assert parked == ([(False,)] if value_type == "bytea" else [])


def test_a_row_knows_its_transaction_and_its_time_by_itself(connection):
    NativeTable(outbox=OutboxTable.parse("outbox"), value_type="text").create(connection)
    with connection.transaction():
        connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')")
        row = connection.execute(
            "SELECT transaction_id = pg_current_xact_id(), create_time <= clock_timestamp(), kafka_header_keys "
            "FROM outbox"
        ).fetchone()
    assert row == (True, True, [])


def test_what_is_put_back_belongs_to_the_transaction_that_puts_it_back(connection):
    """A reader by transaction has passed the one that wrote it, and would never see it again."""
    table = OutboxTable.parse("outbox")
    NativeTable(outbox=table).create(connection)
    parked = ParkedRecords(table)
    parked.create(connection)
    append(connection, [record("a"), record("b")])
    (before,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    Parking(connection, parked).move(1)
    parked.retry(connection, ParkedSelection())
    rows = connection.execute(
        "SELECT id, pg_visible_in_snapshot(transaction_id, %s::pg_snapshot) FROM outbox ORDER BY id", (before,)
    ).fetchall()
    assert rows == [(1, False), (2, True)]


def test_there_is_a_segment_for_every_id(connection):
    NativeTable(outbox=OutboxTable.parse("outbox"), segment_size=10, ahead=2).create(connection)
    for record_id in (-5, 0, 1, 9, 10, 19, 20, 2**63 - 1):
        connection.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (%s, 't', 'k')", (record_id,))
    segments = connection.execute(
        "SELECT tableoid::regclass::text, array_agg(id ORDER BY id) FROM outbox GROUP BY 1 ORDER BY min(id)"
    ).fetchall()
    assert segments == [
        ("outbox_from_0", [-5, 0, 1, 9]),
        ("outbox_from_10", [10, 19]),
        ("outbox_tail", [20, 2**63 - 1]),
    ]


@pytest.mark.parametrize("name", [*NAMES, "n" * 63])
def test_what_is_printed_runs_in_psql_and_gives_the_same_table(dsn, connection, harvest, name):
    connection.execute("CREATE SCHEMA billing")
    printed = harvest("init", "--print", "--table", name, "--value-type", "bytea", "--segment-size", "7")
    if len(name) > 49:
        assert printed.returncode == 4
        assert "49 bytes" in printed.stderr
        return
    assert printed.returncode == 0, printed.stderr
    psql(dsn, printed.stdout)
    table = OutboxTable.parse(name)
    table.check_native(connection)
    assert table.value_type(connection) == "bytea"
    again = harvest("init", "--table", name, HARVEST_DSN=dsn)
    assert again.returncode == 0, again.stderr
    assert [line.split(":")[0] for line in again.stdout.splitlines()] == ["already exists and is valid"] * 5


@pytest.mark.quick
def test_init_makes_the_native_table_unless_another_is_there_or_asked_for(harvest, dsn, connection):
    def init(*arguments):
        return harvest("init", *arguments, HARVEST_DSN=dsn)

    assert init().stdout.splitlines() == [
        'created: "outbox"',
        'created: "outbox_parked"',
        'created: "outbox_subscriptions"',
        'created: "outbox_parked_ids"',
        'created: "outbox_segments"',
    ]
    refused = init("--goharvest")
    assert refused.returncode == 4
    assert "native layout" in refused.stderr
    assert init("--goharvest", "--table", "plain").stdout.splitlines() == [
        'created: "plain"',
        'created: "plain_parked"',
    ]
    assert init("--table", "plain").stdout.startswith("already exists and is valid")
    assert OutboxTable.parse("plain").kind(connection) == "goharvest"
    refused = init("--native", "--table", "plain")
    assert refused.returncode == 4
    assert "harvest migrate" in refused.stderr


def test_the_tables_beside_are_made_where_the_outbox_is(connection):
    NativeTable(outbox=OutboxTable.parse("public.outbox")).create(connection)
    connection.execute(
        "DROP TABLE outbox_subscriptions, outbox_segments; CREATE SCHEMA mine; SET search_path = mine, public"
    )
    assert create_beside(connection, OutboxTable.parse("outbox"))
    assert not create_beside(connection, OutboxTable.parse("outbox"))
    assert connection.execute("SELECT to_regclass('public.outbox_subscriptions') IS NOT NULL").fetchone() == (True,)


def test_tables_that_are_not_native_are_told_so(connection):
    table = OutboxTable.parse("outbox")
    for asked in (table.kind, table.value_type, table.placed, table.check_native):
        with pytest.raises(OutboxTableError, match="harvest init"):
            asked(connection)
    table.create(connection)
    assert table.kind(connection) == "goharvest"
    with pytest.raises(OutboxTableError, match="harvest migrate"):
        table.check_native(connection)


def test_a_sequence_that_hands_out_ids_in_lots_is_refused(connection):
    table = OutboxTable.parse("outbox")
    NativeTable(outbox=table).create(connection)
    connection.execute("ALTER SEQUENCE outbox_id_seq CACHE 20")
    with pytest.raises(OutboxTableError, match="ALTER SEQUENCE outbox_id_seq CACHE 1"):
        table.check(connection)


@pytest.mark.full
def test_members_of_a_pool_that_start_at_once_make_one_table_of_each(dsn):
    """Two `CREATE TABLE IF NOT EXISTS` at once can both find nothing: one of them fails then."""
    members = 6
    with ExitStack() as ending, ThreadPoolExecutor(members) as threads:
        connections = [ending.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(members)]
        for turn in range(10):
            outbox = OutboxTable.parse(f"outbox_{turn}")
            for table in (outbox, ParkedRecords(outbox)):
                assert list(threads.map(table.create, connections)).count(True) == 1
