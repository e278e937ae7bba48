"""The checkpoint topic on a real broker."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from harvest_lib.checkpoints.topic import ensure_checkpoint_topic, read_checkpoints
from harvest_lib.kafka_client import topic_partitions

pytestmark = pytest.mark.gate


def test_shards_that_begin_at_once_all_find_their_partition(bootstrap_servers, unique):
    settings = {"bootstrap.servers": bootstrap_servers}
    for _ in range(3):
        topic = unique("checkpoints")
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(partial(ensure_checkpoint_topic, settings, topic), (1, 6, 2, 5, 3, 4)))
        assert topic_partitions(settings)[topic] == 6


class NoLeaderYet(Consumer):
    """A client of a broker that has not yet heard who leads a partition that was just created."""

    said: ClassVar = [
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    ]

    def get_watermark_offsets(self, *args, **kwargs):
        if self.said:
            raise KafkaException(KafkaError(self.said.pop()))
        return super().get_watermark_offsets(*args, **kwargs)


def test_a_partition_that_was_just_created_gets_its_leader(bootstrap_servers, unique):
    settings, topic = {"bootstrap.servers": bootstrap_servers}, unique("checkpoints")
    ensure_checkpoint_topic(settings, topic, 1)
    assert read_checkpoints(settings, topic, 0, "default/0", NoLeaderYet) == []
    assert not NoLeaderYet.said
