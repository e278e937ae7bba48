"""The audit by Spark where text is not UTF-8: a record that cannot be read is parked, and the others are audited."""

import psycopg
import pytest
from support.audited import BUSINESS
from support.encoded import prepared, write
from support.outbox import harvest_config
from support.spark import jars_named

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.spark.audit import audit

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.fixture
def topic(make_topic):
    return make_topic(partitions=2)


@pytest.fixture
def dsn(spark, encoded):
    with jars_named():
        yield encoded("SQL_ASCII")


def drain(dsn, servers, group_id, source):
    config = harvest_config(dsn, servers, group_id, source=source, delivery="barrier", leadership="solo")
    Harvest(config).drain(60)


def test_of_an_outbox_the_records_that_can_be_read_are_audited(dsn, topic, bootstrap_servers, group_id):
    prepared(dsn, topic, "snapshot")
    name = topic.encode()
    readable = [(name, "café".encode(), b"1", [b"h"], ["ü".encode()]), (name, b"value", b"caf\xe9", [], [])]
    unreadable = [
        (name, b"k\xe9y", b"key", [], []),
        (name + b"\xff", b"topic", b"topic", [], []),
        (name, b"header", b"v\xff", [b"h"], [b"\xe9"]),
    ]
    write(dsn, "SQL_ASCII", *readable, *unreadable)
    drain(dsn, bootstrap_servers, group_id, "snapshot")
    write(dsn, "SQL_ASCII", (name, b"k\xe9y 2", b"waits", [b"h\xe9"], [b"\xe9"]))
    found = audit(dsn=dsn, kafka={"bootstrap.servers": bootstrap_servers}, topics=[topic])
    assert (found.records, found.committed, found.backlog_records, found.ok) == (2, 5, 1, True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "DELETE FROM outbox_parked_ids WHERE id = 3; UPDATE outbox_subscriptions SET retention_hold = NULL"
        )
    assert audit(dsn=dsn, kafka={"bootstrap.servers": bootstrap_servers}, topics=[topic]).lost == 1


def test_of_a_purged_outbox_the_records_that_can_be_read_are_audited(dsn, topic, bootstrap_servers, group_id):
    prepared(dsn, topic, "mark")
    name = topic.encode()
    ids = [b"1", b"2", b"3"]
    keys = ["café".encode(), b"k\xe9y", b"last"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(BUSINESS)
        connection.execute("INSERT INTO flights (batch) SELECT 'b' FROM generate_series(1, 4)")
        connection.execute("INSERT INTO flights_batches (batch, rows) VALUES ('b', 4)")
    write(
        dsn,
        "SQL_ASCII",
        *((name, key, b"v", [b"event-id"], [id_]) for key, id_ in zip(keys, ids, strict=True)),
        (name, b"id", b"v", [b"event-id"], [b"\xe9"]),
    )
    drain(dsn, bootstrap_servers, group_id, "mark")
    # The fourth waits, and so does another whose own id cannot be read.
    write(
        dsn,
        "SQL_ASCII",
        (name, b"k\xe9y 2", b"v", [b"event-id"], [b"4"]),
        (name, b"id", b"v", [b"event-id"], [b"\xe9"]),
    )
    found = audit(dsn=dsn, kafka={"bootstrap.servers": bootstrap_servers}, topics=[topic])
    assert (found.records, found.committed, found.backlog_records, found.ok) == (2, 4, 2, True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM outbox_parked WHERE id = 2")
    assert audit(dsn=dsn, kafka={"bootstrap.servers": bootstrap_servers}, topics=[topic]).lost == 1
