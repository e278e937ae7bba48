"""Series of a process that reads: bounded, whatever it reads, and those closest to trouble are among them."""

import pytest

from harvest_lib.clock import boot_seconds
from harvest_lib.consume import Consumer
from harvest_lib.consume.consumer import OwnedShard, ShardCounts
from harvest_lib.consume.retention import Retained, retention_readings
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.counts import MOST_SERIES, OTHER

pytestmark = pytest.mark.quick

PARTITIONS, TOPICS = 3 * MOST_SERIES, 2 * MOST_SERIES


def test_partitions_closest_to_a_loss_are_reported_and_no_unread_record_is_left_out():
    read = [Retained(topic="t", partition=each, unread=0, retained=0, start=0) for each in range(PARTITIONS)]
    behind = [
        Retained(
            topic="u",
            partition=each,
            unread=1,
            retained=PARTITIONS - each,
            start=0,
            retention_seconds=100.0,
            expires_at=float(each),
        )
        for each in range(PARTITIONS)
    ]
    found = dict(retention_readings([*read, *behind]))
    assert max(map(len, found.values())) <= MOST_SERIES + 1
    nearest = {("u", str(each)) for each in range(PARTITIONS - MOST_SERIES, PARTITIONS)}
    assert found[catalogue.UNREAD_RECORDS].keys() == {*nearest, (OTHER, OTHER)}
    assert sum(found[catalogue.UNREAD_RECORDS].values()) == PARTITIONS
    for metric in (catalogue.READ_RETAINED, catalogue.READ_START, catalogue.UNREAD_EXPIRY):
        assert found[metric].keys() == nearest
    assert found[catalogue.TOPIC_RETENTION] == {("u",): 100.0}


def test_as_many_partitions_as_there_may_be_have_no_others():
    seen = [Retained(topic="t", partition=each, unread=1, retained=1, start=0) for each in range(MOST_SERIES)]
    found = dict(retention_readings(seen))[catalogue.UNREAD_RECORDS]
    assert found == {("t", str(each)): 1 for each in range(MOST_SERIES)}


class Wide(Consumer):
    """A consumer that owns partitions of many topics, as one that subscribes to a pattern does."""

    def __init__(self):
        super().__init__(None, name="wide", topics=["^t.*"], settings={}, store=None)
        self.topics = [f"t{number}" for number in range(TOPICS)]
        self.began = boot_seconds()

    def counts(self):
        return {topic: ShardCounts(messages=1, transactions=1, parked=1) for topic in self.topics}

    def owned(self):
        return [
            OwnedShard(
                topic=topic,
                partition=0,
                offset=7,
                position=7,
                stuck_since=self.began - place if place % 2 else None,
            )
            for place, topic in enumerate(self.topics)
        ]


def test_topics_of_a_consumer_are_bounded_and_each_message_is_counted():
    consumer = Wide()
    telemetry = ConsumerTelemetry(consumer)
    found = dict(telemetry.readings())
    assert max(map(len, found.values())) <= MOST_SERIES + 1
    for metric in (
        catalogue.CONSUMER_SHARDS,
        catalogue.CONSUMER_MESSAGES,
        catalogue.CONSUMER_TRANSACTIONS,
        catalogue.CONSUMER_PARKED,
    ):
        assert sum(found[metric].values()) == TOPICS
        assert found[metric][OTHER,] == TOPICS - MOST_SERIES
    stuck = {(f"t{place}", "0") for place in range(TOPICS) if place % 2}
    assert found[catalogue.CONSUMER_STUCK].keys() == found[catalogue.CONSUMER_OFFSET].keys() == stuck
    consumer.topics.insert(0, "t-later")
    again = dict(telemetry.readings())[catalogue.CONSUMER_MESSAGES]
    assert again.keys() == found[catalogue.CONSUMER_MESSAGES].keys(), "a series that was there stays"
    assert again[OTHER,] == TOPICS - MOST_SERIES + 1
