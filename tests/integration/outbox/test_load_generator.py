"""The pump: its records, its end, and its rate."""

import random
import threading

import psycopg
import pytest
from psycopg import sql

from harvest_lib.errors import OutboxTableError, RecordError
from harvest_lib.outbox import Load, OutboxTable, pump
from harvest_lib.postgres.database import connect

pytestmark = pytest.mark.full


class Pumped:
    """An outbox and a connection to pump into it."""

    def __init__(self, dsn, name="outbox"):
        self.table = OutboxTable.parse(name)
        self.connection = connect(dsn)
        self.table.create(self.connection)
        self.stopping = threading.Event()

    def start(self, seed=1, **load):
        wanted = Load(**{"topic": "t", "keys": 3, "records": 10, **load})
        return pump(self.connection, self.table, wanted, dice=random.Random(seed), stopping=self.stopping)

    def rows(self, columns="kafka_value"):
        statement = sql.SQL("SELECT {} FROM {} ORDER BY id").format(sql.SQL(columns), self.table.identifier)
        rows = self.connection.execute(statement).fetchall()
        return rows if "," in columns else [row[0] for row in rows]


@pytest.fixture
def pumped(dsn):
    made = Pumped(dsn)
    yield made
    made.connection.close()


def test_records_are_those_of_goharvest(pumped):
    assert list(pumped.start(records=50, per_transaction=20)) == [20, 40, 50]
    rows = pumped.rows("kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, leader_id")
    for number, (topic, key, value, names, contents, leader_id) in enumerate(rows):
        drawn = int(value.removeprefix("value-"), 16)
        assert (topic, key, leader_id) == ("t", f"key-{drawn % 3:x}", None)
        assert (names, contents) == (["Seq"], [str(number)])
    assert len(rows) == 50
    assert len({row[1] for row in rows}) == 3


def test_each_lot_is_one_transaction(pumped):
    assert list(pumped.start(records=5, per_transaction=2)) == [2, 4, 5]
    transactions = pumped.rows("xmin::text, count(*) OVER (PARTITION BY xmin::text)")
    assert [count for _, count in transactions] == [2, 2, 2, 2, 1]


def test_values_may_be_blank_or_of_a_size(pumped):
    list(pumped.start(records=2, blank=True))
    list(pumped.start(records=2, value_chars=5))
    list(pumped.start(records=2, value_chars=10_000))
    assert [value and len(value) for value in pumped.rows()] == [None, None, 5, 5, 10_000, 10_000]


@pytest.mark.parametrize("headers", [0, 1, 3])
def test_there_are_as_many_headers_as_wanted(pumped, headers):
    list(pumped.start(records=2, headers=headers))
    assert [
        (len(names), len(contents)) for names, contents in pumped.rows("kafka_header_keys, kafka_header_values")
    ] == [(headers, headers)] * 2


def test_a_stop_ends_it_after_the_present_transaction(pumped):
    counts = []
    for written in pumped.start(records=100, per_transaction=5, interval_seconds=3600):
        counts.append(written)
        pumped.stopping.set()
    assert counts == [5]
    assert len(pumped.rows()) == 5
    assert list(pumped.start()) == [], "nor does it begin"


def test_a_table_is_found_by_its_name_whatever_that_holds(dsn):
    pumped = Pumped(dsn, '100%s "Case"')
    list(pumped.start())
    assert len(pumped.rows()) == 10
    pumped.connection.close()


def test_what_cannot_be_pumped_is_refused_at_once(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, topic, error in (("absent", "t", OutboxTableError), ("absent", "a b", RecordError)):
            load = Load(topic=topic, keys=1, records=1)
            with pytest.raises(error):
                next(
                    pump(
                        connection,
                        OutboxTable.parse(table),
                        load,
                        dice=random.Random(1),
                        stopping=threading.Event(),
                    )
                )


def test_a_writer_needs_no_more_than_a_writer_has(pumped, dsn):
    pumped.connection.execute("DROP ROLE IF EXISTS pumper")
    pumped.connection.execute("CREATE ROLE pumper")
    pumped.connection.execute("GRANT INSERT ON outbox TO pumper; GRANT USAGE ON SEQUENCE outbox_id_seq TO pumper")
    pumped.connection.execute("SET ROLE pumper")
    assert list(pumped.start()) == [10]
    pumped.connection.execute("RESET ROLE; DROP OWNED BY pumper; DROP ROLE pumper")
