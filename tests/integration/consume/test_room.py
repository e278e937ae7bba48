"""More partitions than there are connections or files for: one line says so, and all are served in turn."""

from functools import partial

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.consuming import Counting, Running
from support.waiting import eventually

from harvest_lib.consume import Consumer, PostgresStore, create_tables
from harvest_lib.process import open_files

pytestmark = pytest.mark.gate

PARTITIONS, ROOM = 8, 3


@pytest.fixture
def role(dsn, unique):
    """A role that may have as many connections as ROOM."""
    name = unique("few")[:63]
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'few' CONNECTION LIMIT {}").format(
                sql.Identifier(name), sql.Literal(ROOM)
            )
        )
        connection.execute(
            sql.SQL("GRANT SELECT, INSERT, UPDATE ON consumers, consumers_parked, counts TO {}").format(
                sql.Identifier(name)
            )
        )
    yield name
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(*[sql.Identifier(name)] * 2))


@pytest.fixture
def running(bootstrap_servers, make_topic, unique, role, monkeypatch):
    """Run a consumer of a topic, each partition of which has a message."""
    monkeypatch.setattr("harvest_lib.consume.ownership.TURN_SECONDS", 0.2)
    topic = make_topic(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"v", key=str(partition), partition=partition)
    assert producer.flush(60) == 0

    def run(dsn, application=None):
        consumer = Consumer(
            application or Counting(),
            name=unique("counts"),
            topics=[topic],
            settings={"bootstrap.servers": bootstrap_servers},
            store=partial(PostgresStore, dsn),
        )
        return Running(consumer.run)

    return run


def counted(dsn):
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT key, n FROM counts").fetchall())


def events(caplog, name):
    return [record for record in caplog.records if record.message == name]


ALL = {str(partition): 1 for partition in range(PARTITIONS)}


def test_partitions_share_the_connections_that_a_role_may_have(dsn, role, running, caplog):
    consumer = running(make_conninfo(dsn, user=role, password="few"))
    eventually(lambda: counted(dsn) == ALL, "each has had its turn")
    assert consumer.end() is None
    (said,) = events(caplog, "shards_wait")
    assert f'role "{role}"' in said.reason
    assert "CONNECTION LIMIT" in said.next_step
    assert [record.reason for record in events(caplog, "shard_failed")] == []


class Refusing(Counting):
    """Takes no message of one key."""

    def consume_message(self, transaction, message):
        if message.record.key() == b"3":
            raise ValueError("no")
        super().consume_message(transaction, message)


def test_turns_that_end_at_once_leave_time_to_keep_and_to_park(dsn, role, running, monkeypatch):
    monkeypatch.setattr("harvest_lib.consume.ownership.TURN_SECONDS", 0.0)
    consumer = running(make_conninfo(dsn, user=role, password="few"), Refusing())
    others = {key: n for key, n in ALL.items() if key != "3"}
    with psycopg.connect(dsn, autocommit=True) as connection:
        eventually(
            lambda: counted(dsn) == others and connection.execute("SELECT key FROM consumers_parked").fetchall(),
            "each has had its turn, and one is parked",
        )
        assert connection.execute("SELECT key FROM consumers_parked").fetchall() == [(b"3",)]
    assert consumer.end() is None


def test_partitions_share_the_files_that_there_are(dsn, running, caplog, monkeypatch):
    limit = open_files.used() + 64 + ROOM * 20
    monkeypatch.setattr(open_files, "raise_limit", lambda: limit)
    monkeypatch.setattr(open_files, "limit", lambda: limit)
    monkeypatch.setattr("harvest_lib.consume.room._OPENING_SECONDS", 1.0)
    consumer = running(dsn)
    eventually(lambda: counted(dsn) == ALL, "each has had its turn")
    assert consumer.end() is None
    (said,) = events(caplog, "shards_wait")
    assert str(limit) in said.reason
    assert "LimitNOFILE" in said.next_step
    assert [record.reason for record in events(caplog, "shard_failed")] == []
