"""The partition of a key is computed as the client does it, under each partitioner; the counted moves are real ones."""

import json
import os
import random

import pytest
from confluent_kafka import Producer

from harvest_lib.delivery.partitioners import moved_share, partition_of
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.gate

PARTITIONS = 7
PARTITIONERS = ("consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random")
RANDOM = random.Random(4)
KEYS = [RANDOM.randbytes(RANDOM.randrange(1, 40)) for _ in range(500)] + [f"customer-{n}".encode() for n in range(500)]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_key_goes_where_the_client_puts_it(bootstrap_servers, make_topic, partitioner):
    topic, went = make_topic(partitions=PARTITIONS), {}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": partitioner})
    for key in KEYS:
        producer.produce(topic, b"v", key=key, on_delivery=lambda _, sent: went.update({sent.key(): sent.partition()}))
    assert producer.flush(60) == 0
    assert went == {key: partition_of(key, PARTITIONS, partitioner) for key in KEYS}
    assert set(went.values()) == set(range(PARTITIONS))


@pytest.mark.parametrize("partitioner", ["random", "round_robin"])
def test_a_partitioner_that_gives_a_key_no_partition_is_refused(partitioner):
    with pytest.raises(ConfigError, match=partitioner) as refused:
        partition_of(b"k", 3, partitioner)
    assert "murmur2" in refused.value.next_step


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 5), (4, 5), (4, 8), (6, 9), (12, 18), (3, 100)])
def test_the_share_that_moves_is_what_is_counted(before, after):
    hashes = range(before * after * 10)
    assert moved_share(before, after) == pytest.approx(sum(n % before != n % after for n in hashes) / len(hashes))
    moved = sum(partition_of(key, before) != partition_of(key, after) for key in KEYS)
    assert moved / len(KEYS) == pytest.approx(moved_share(before, after), abs=0.06)


def test_the_command_says_where_keys_go_and_went(harvest, reaper, outbox, make_topic):
    topic = make_topic(partitions=5)
    done = harvest("partition", topic, "a", "b\udcff", "-f", str(reaper), "--before", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {
            "key": key,
            "partition": partition_of(os.fsencode(key), 5),
            "partitions": 5,
            "partition_before": partition_of(os.fsencode(key), 3),
            "partitions_before": 3,
        }
        for key in ("a", "b\udcff")
    ]
    done = harvest("partition", topic, "a", "-f", str(reaper))
    assert done.stdout == f"a: partition {partition_of(b'a', 5)} of 5\n", "nobody has noticed any"


def test_the_command_takes_the_partitioner_of_the_configuration(harvest, reaper, outbox, make_topic):
    topic = make_topic(partitions=5)
    reaper.write_text(reaper.read_text().replace("compression.type: lz4", "partitioner: murmur2"))
    for key in ("a", "b", "c", "d"):
        done = harvest("partition", topic, key, "-f", str(reaper), "--json")
        assert json.loads(done.stdout)["partition"] == partition_of(key.encode(), 5, "murmur2")


def test_a_topic_that_is_not_there(harvest, reaper, outbox, unique):
    done = harvest("partition", unique("missing"), "a", "-f", str(reaper))
    assert done.returncode == 6, done.stdout
    assert "does not exist" in done.stderr
