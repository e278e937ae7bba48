"""Rows that are marked, handed over natively: the same records arrive as from Python."""

import random
import time

import psycopg
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition
from support.batches import START
from support.brokers import RealBroker, always, begun
from support.handing_over import ALL
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib.delivery import BatchFailed
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import NativeRows, implementation, library, rows_of
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, %s, %s)
"""
_TEXTS = ["", "a", "ключ", "鍵" * 20, "🔑", "line\nbreak", "\x01\x7f"]


@pytest.fixture
def outbox(dsn):
    """A table as goharvest has it: return the function that fills it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        ParkedRecords(OutboxTable.parse("outbox")).create(connection)

    def fill(rows):
        with psycopg.connect(dsn) as connection:
            connection.cursor().executemany(_INSERT, list(rows))

    return fill


def generated(topic, count, seed):
    dice = random.Random(seed)
    for _ in range(count):
        headers = [
            (dice.choice(["a", "ключ", ""]), dice.choice([*_TEXTS, None])) for _ in range(dice.choice([0, 1, 3]))
        ]
        names, contents = [list(each) for each in zip(*headers, strict=True)] if headers else ([], [])
        value = None if dice.random() < 0.1 else dice.choice(_TEXTS) * dice.choice([1, 30])
        yield topic, dice.choice(_TEXTS), value, names, contents


def harvest(dsn, servers, group, **settings):
    config = harvest_config(
        dsn,
        servers,
        group,
        leadership="solo",
        source="mark",
        **{"delivery": "pipelined", **settings},
    )
    return Harvest(config)


def in_kafka(servers, topic, *, has_ids):
    """Return what a topic has by partition, without who sent it, and without the records of the delivery's own."""
    found = {}
    for each in read_topic(servers, topic, isolation="read_uncommitted"):
        if each.outbox_id is not None:
            found.setdefault(each.partition, []).append((each.key, each.value, each.headers[has_ids:-1]))
    return found


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", ["pipelined", "transactional", "sequenced"])
def test_both_ways_write_the_same(
    dsn, bootstrap_servers, group_id, make_topic, outbox, monkeypatch, handed_over, delivery
):
    found = {}
    for way in ("python", "native"):
        monkeypatch.setenv(library.VARIABLE, way)
        library.implementation.cache_clear()
        topic = make_topic(partitions=3)
        outbox(generated(topic, 4_000, seed=7))
        assert harvest(dsn, bootstrap_servers, group_id, delivery=delivery).drain(120).records == 4_000
        assert handed_over["records"] == (4_000 if way == "native" else 0)
        found[way] = in_kafka(bootstrap_servers, topic, has_ids=delivery == "sequenced")
    assert found["native"] == found["python"]


def test_the_table_is_empty_afterwards_and_nothing_was_sent_twice(
    dsn, bootstrap_servers, group_id, make_topic, outbox, handed_over
):
    topic = make_topic()
    outbox((topic, f"k{number % 7}", f"{number}", [], []) for number in range(5_000))
    assert harvest(dsn, bootstrap_servers, group_id).drain(60).records == 5_000
    assert handed_over["records"] == 5_000
    assert [int(each.value) for each in read_topic(bootstrap_servers, topic)] == list(range(5_000))
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def test_under_the_key_barrier_pages_go_natively_and_so_do_rows_that_were_deferred(
    dsn, bootstrap_servers, group_id, make_topic, outbox, handed_over
):
    topic = make_topic(partitions=3)
    outbox((topic, f"k{number % 3_000}", f"{number}", [], []) for number in range(6_000))
    assert harvest(dsn, bootstrap_servers, group_id, delivery="barrier").drain(120).records == 6_000
    assert handed_over["records"] == 6_000
    found = {}
    for each in read_topic(bootstrap_servers, topic):
        found.setdefault(each.key, []).append(int(each.value))
    assert found == {f"k{number}": [number, number + 3_000] for number in range(3_000)}


def test_natively_too_the_keys_of_failed_records_tell_which_are_not_in_kafka(
    dsn, bootstrap_servers, make_topic, outbox
):
    broker = RealBroker(bootstrap_servers, make_topic(), expiry_seconds=600.0)
    delivery = begun(broker.delivery(**{"topic.metadata.propagation.max.ms": 300}))
    outbox((broker.topic, f"k{number}", "v", [], []) for number in range(50))
    missing = f"{broker.topic}.missing"
    outbox([(missing, "lost", "v", [], [])])
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        assert isinstance(rows, NativeRows)
        assert delivery.send(rows, always) == {}
    assert delivery.send([(1_000, missing, "lost by Python", "v", [], [])], always) == {}
    assert isinstance(delivery.commit(START, always), BatchFailed)
    abandoned = delivery.abandon()
    assert not abandoned.may_arrive
    failed = {each.decode() for each in abandoned.failed_keys}
    assert failed >= {"lost", "lost by Python"}
    assert {each.key for each in broker.arrived()} == {f"k{number}" for number in range(50)} - failed
    broker.close()


def test_natively_too_none_is_handed_over_once_the_term_is_over(
    dsn, bootstrap_servers, make_topic, outbox, monkeypatch
):
    broker = RealBroker(bootstrap_servers, make_topic(), expiry_seconds=600.0)
    delivery, checks = begun(broker.delivery()), iter([True, False, False])
    outbox((broker.topic, f"k{number}", "v", [], []) for number in range(50))
    monkeypatch.setattr("harvest_lib.delivery.producer.boot_seconds", lambda: 0.0)  # each answer is too old at once
    with psycopg.connect(dsn) as connection:
        delivery.send(rows_of(connection.cursor(binary=True).execute(ALL)), lambda: next(checks))
    assert isinstance(delivery.commit(START, always), BatchFailed)
    assert delivery.abandon().failed_keys is None
    assert broker.arrived() == []
    broker.close()


def test_a_record_has_the_time_at_which_it_was_handed_over(dsn, bootstrap_servers, group_id, make_topic, outbox):
    topic = make_topic()
    outbox([(topic, "k", "v", [], [])])
    before = int(time.time() * 1000)
    harvest(dsn, bootstrap_servers, group_id).drain(60)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "r", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    kind, timestamp = eventually(lambda: consumer.poll(0.2)).timestamp()
    consumer.close()
    assert kind == TIMESTAMP_CREATE_TIME
    assert before <= timestamp <= time.time() * 1000


def test_a_record_that_is_parked_leaves_the_others_in_order(
    dsn, bootstrap_servers, group_id, make_topic, outbox, handed_over
):
    """The page before it goes natively. Its own goes row by row, and so does what is marked once it is parked."""
    topic = make_topic(**{"max.message.bytes": 3_000})
    values = ["x" * 5_000 if number == 900 else f"{number}" for number in range(1_500)]
    outbox((topic, "k", value, [], []) for value in values)
    harvest(dsn, bootstrap_servers, group_id, parking="skip").drain(120)
    assert handed_over["records"] >= 500, "those of the pages around it"
    assert [each.value for each in read_topic(bootstrap_servers, topic)] == [v for v in values if len(v) < 5_000]
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        assert connection.execute("SELECT id FROM outbox_parked").fetchall() == [(901,)]
