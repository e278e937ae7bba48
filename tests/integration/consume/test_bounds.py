"""Bounds of a consumer: the messages it holds, and the bytes that its ids and acknowledgements add to a topic."""

import time
from functools import partial
from itertools import chain

import psycopg
import pytest
from support.consuming import Counting, Running
from support.waiting import eventually

from harvest_lib.consume import (
    Clock,
    Flag,
    PostgresStore,
    Publisher,
    Sequencer,
    Shard,
    ShardId,
    ShardLimits,
    create_tables,
    new_producer_id,
    read_committed,
    read_uncommitted,
    unpack,
)

pytestmark = pytest.mark.gate

PENDING, EVERY, RING = 200_000, 100, 500
PARTITIONS, MESSAGES, VALUE_BYTES = 4, 4_000, 200
BATCH_BYTES = 61
"""Bytes that Kafka writes before a batch of records, in its format of version 2."""


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def publish(settings):
    """Make publishers, each with an id of its own."""
    made = []

    def make():
        publisher = Publisher(settings, producer_id=new_producer_id(), clock=Clock(time.time_ns))
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close()


def counted(dsn):
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT key, n FROM counts").fetchall())


@pytest.mark.full
def test_a_shard_holds_no_more_than_its_ring_while_others_messages_come(dsn, settings, make_topic, publish):
    topic, stuck, other = make_topic(), publish(), publish()
    for number in range(PENDING):
        stuck.publish_uncommitted(topic, b"v", key="stuck")
        if number % EVERY == 0:
            other.publish_committed(topic, b"v", key="other")
        if number < 2 * RING and number % EVERY == 0:  # else one's come before the other's, in large batches
            stuck.flush()
            other.flush()
    stuck.flush()
    other.flush()
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    seen, highest = [], 0

    def read(sequencer):
        nonlocal highest
        seen.append(sequencer)
        for group in read_committed(settings, topic, 0, sequencer=sequencer):
            highest = max(highest, sequencer.held)
            yield group

    place = ShardId("counts", topic, 0)
    shard = Shard(
        Counting(),
        PostgresStore(dsn, place),
        shard=place,
        topic_id="",
        read=read,
        publisher=partial(pytest.fail, "it has nothing to publish"),
        limits=ShardLimits(ring=RING),
    )
    running = Running(shard.run)
    eventually(lambda: counted(dsn) == {"other": PENDING // EVERY}, "the others' are counted")
    eventually(lambda: seen[0].offset >= PENDING, "all was read")
    assert running.end() is None
    assert 0 < highest <= RING
    assert len(seen) == 1


def varint_bytes(number):
    """Return how long Kafka's zigzag encoding of a number is."""
    return max(1, ((2 * abs(number)).bit_length() + 6) // 7)


def counted_bytes(content):
    return varint_bytes(len(content or b"")) + len(content or b"")


def record_bytes(message):
    """Return the size of a record as it stands in a batch; the deltas of offset and time, 1 to 3 bytes each, as 1."""
    record = message.record
    named = [part for name, value in record.headers() for part in (name.encode(), value)]
    body = 3 + varint_bytes(len(record.headers())) + sum(map(counted_bytes, [record.key(), record.value(), *named]))
    return varint_bytes(body) + body


def test_acknowledgements_add_less_than_two_percent_to_a_transaction(settings, make_topic, publish):
    """One for each partition, however many messages there are: the worst case, where each is a batch of its own."""
    topic, publisher = make_topic(partitions=PARTITIONS), publish()
    for number in range(MESSAGES):
        publisher.publish_uncommitted(topic, b"x" * VALUE_BYTES, key=f"key-{number}", partition=number % PARTITIONS)
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    found = [
        message
        for partition in range(PARTITIONS)
        for message in chain(*read_uncommitted(settings, topic, partition, begin=0, end=MESSAGES // PARTITIONS + 1))
    ]
    acknowledgements = [message for message in found if unpack(message.id).flag == Flag.ACK_TXN]
    assert (len(found), len(acknowledgements)) == (MESSAGES + PARTITIONS, PARTITIONS)
    added = sum(map(record_bytes, acknowledgements)) + PARTITIONS * BATCH_BYTES
    messages = sum(map(record_bytes, found)) - sum(map(record_bytes, acknowledgements))
    assert added <= 0.02 * messages
    assert added / PARTITIONS <= 110, "so that it holds from 22 messages of 250 bytes in a partition on"
    sequencers = [Sequencer() for _ in range(PARTITIONS)]
    for partition, sequencer in enumerate(sequencers):
        read = read_committed(settings, topic, partition, sequencer=sequencer, end=MESSAGES // PARTITIONS + 1)
        assert sum(len(list(group)) for group in read) == MESSAGES // PARTITIONS
