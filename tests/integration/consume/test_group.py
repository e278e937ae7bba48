"""Consumers that share the partitions of topics: who owns one is one, and what fails does so alone."""

import threading
from functools import partial

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaClient
from confluent_kafka import Producer, TopicPartition
from support.consuming import Counting, Running
from support.waiting import eventually

from harvest_lib.consume import Consumer, PostgresStore, ShardLimits, create_tables
from harvest_lib.errors import ConfigError, KafkaError, TopicMissing

pytestmark = pytest.mark.gate

PARTITIONS = 4


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers, "session.timeout.ms": 60_000}


@pytest.fixture
def topic(make_topic):
    return make_topic(partitions=PARTITIONS)


@pytest.fixture
def name(unique):
    return unique("counts")


@pytest.fixture
def consumer(dsn, settings, topic, name):
    """Make members of one group."""
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")

    def make(application=None, **limits):
        return Consumer(
            application or Counting(),
            name=name,
            topics=[topic],
            settings=settings,
            store=partial(PostgresStore, dsn),
            limits=ShardLimits(**limits),
        )

    return make


def counted(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT coalesce(sum(n), 0) FROM counts").fetchone()[0]


def fences(dsn):
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT partition, fence FROM consumers").fetchall())


def write(settings, topic, number, partition=None):
    producer = Producer({"bootstrap.servers": settings["bootstrap.servers"]})
    for each in range(number):
        producer.produce(topic, b"v", key=str(each), **({} if partition is None else {"partition": partition}))
    assert producer.flush(60) == 0


def test_members_share_the_partitions_and_hand_them_over(dsn, settings, topic, consumer):
    write(settings, topic, 1000)
    first = Running(consumer().run)
    eventually(lambda: counted(dsn) == 1000, "the first counts all")
    assert fences(dsn) == dict.fromkeys(range(PARTITIONS), 1)
    second = Running(consumer().run)
    eventually(lambda: sorted(fences(dsn).values()) == [1, 1, 2, 2], "the second has half of them")
    write(settings, topic, 1000)
    eventually(lambda: counted(dsn) == 2000, "both count")
    assert first.end() is None
    write(settings, topic, 1000)
    eventually(lambda: counted(dsn) == 3000, "the second counts all")
    assert second.end() is None


@pytest.mark.full
def test_the_group_shows_how_far_it_is(dsn, settings, topic, name, consumer):
    write(settings, topic, 7, partition=1)
    running = Running(consumer().run)
    group = KafkaClient({**settings, "group.id": name})
    place = TopicPartition(topic, 1)
    eventually(lambda: group.committed([place], 10)[0].offset == 7, "the offset is reported")
    group.close()
    assert running.end() is None


def test_a_partition_that_fails_is_tried_again_and_the_others_go_on(dsn, settings, topic, consumer):
    mended = threading.Event()

    class Failing(Counting):
        def finalize_txn(self, transaction):
            super().finalize_txn(transaction)
            if transaction.shard.partition == 2 and not mended.is_set():
                raise RuntimeError("not yet")

    for partition in range(PARTITIONS):
        write(settings, topic, 100, partition=partition)
    running = Running(consumer(Failing(), max_attempts=1_000_000).run)
    eventually(lambda: counted(dsn) == 300, "the others are counted")
    mended.set()
    eventually(lambda: counted(dsn) == 400, "it is counted too")
    assert running.end() is None


def test_a_topic_that_is_missing_is_said(dsn, settings, name):
    consumer = Consumer(Counting(), name=name, topics=["nowhere"], settings=settings, store=partial(PostgresStore, dsn))
    with pytest.raises(TopicMissing, match="nowhere"):
        consumer.run(threading.Event())


def test_a_group_with_members_of_another_kind_is_said(settings, topic, name, consumer):
    """Kafka refuses whoever comes second, and nothing changes until one of them goes."""
    plain = KafkaClient({**settings, "group.id": name})
    plain.subscribe([topic])
    eventually(lambda: plain.poll(0.1) or plain.assignment(), "it is a member")
    try:
        with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL") as raised:
            consumer().run(threading.Event())
    finally:
        plain.close()
    assert name in raised.value.next_step


def test_a_session_that_the_brokers_do_not_allow_is_said(dsn, settings, topic, name, consumer):
    settings["session.timeout.ms"] = 1_900_000  # Kafka's limit is half an hour
    settings["max.poll.interval.ms"] = 2_000_000
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms"):
        consumer().run(threading.Event())


def test_an_owner_whose_function_does_not_return_is_left_and_fenced(dsn, settings, topic, consumer, monkeypatch):
    monkeypatch.setattr("harvest_lib.consume.consumer.END_SECONDS", 0.2)
    entered, go_on = threading.Event(), threading.Event()

    class Stuck(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            entered.set()
            go_on.wait(60)

    stuck = consumer(Stuck())
    write(settings, topic, 1, partition=0)
    running = Running(stuck.run)
    assert entered.wait(60)
    assert running.end() is None
    successor = Running(consumer().run)
    eventually(lambda: counted(dsn) == 1, "the next owner counts it")
    go_on.set()
    eventually(lambda: stuck.fenced == 1, "the old one is informed")
    assert successor.end() is None
    assert counted(dsn) == 1
