"""The checkpoint topic on a real broker."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from harvest_lib.checkpoints.topic import ensure_checkpoint_topic
from harvest_lib.kafka_client import topic_partitions


def test_shards_that_begin_at_once_all_find_their_partition(bootstrap_servers, unique):
    settings = {"bootstrap.servers": bootstrap_servers}
    for _ in range(3):
        topic = unique("checkpoints")
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(partial(ensure_checkpoint_topic, settings, topic), (1, 6, 2, 5, 3, 4)))
        assert topic_partitions(settings)[topic] == 6
