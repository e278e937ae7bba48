"""A shard whose state is in SQLite, over a real Kafka: it moves from owner to owner, and each message counts once."""

import time
from collections import Counter

import pytest
from confluent_kafka import Producer
from support.consuming import Running
from support.recorded import Machines
from support.waiting import eventually

from harvest_lib.consume import Clock, Fenced, Publisher, Shard, ShardId, ShardLimits, new_producer_id, read_committed

pytestmark = pytest.mark.gate


class Counting:
    """Counts messages by key."""

    def consume_message(self, transaction, message):
        state = transaction.state
        state.execute("CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, n INT)")
        state.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET n = n + 1",
            (message.record.key().decode(),),
        )

    def finalize_txn(self, transaction):
        pass


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def machines(settings, make_topic, unique, tmp_path):
    made = Machines(settings, make_topic(name=unique("log"), **{"cleanup.policy": "compact"}), tmp_path)
    yield made
    made.close()


def test_each_message_counts_once_whoever_owns_the_shard(settings, make_topic, machines):
    topic, written, owners = make_topic(), Counter(), []
    place = ShardId("counts", topic, 0)

    def own():
        shard = Shard(
            Counting(),
            machines(place),
            shard=place,
            topic_id="",
            read=lambda sequencer: read_committed(settings, topic, 0, sequencer=sequencer),
            publisher=lambda: Publisher(settings, producer_id=new_producer_id(), clock=Clock(time.time_ns)),
            limits=ShardLimits(),
        )
        owners.append((shard, Running(shard.run)))
        return owners[-1]

    def write(keys):
        producer = Producer(settings)
        for key in keys:
            producer.produce(topic, b"v", key=key)
        assert producer.flush(60) == 0
        written.update(keys)

    try:
        write("abac")
        old, running = own()
        eventually(lambda: old.committed == 4, "the old owner has counted")
        new, _ = own()

        def is_told():
            write("ab")
            return running.error is not None

        eventually(is_told, "the old owner learns it as it commits")
        total = written.total()
        eventually(lambda: old.committed + new.committed == total, "the new owner has counted the rest")
    finally:
        ended = [owner.end() for _, owner in owners]
    assert isinstance(ended[0], Fenced)
    assert ended[1] is None
    last = machines(place)
    assert last.restore().offset == total
    assert dict(last.begin().execute("SELECT key, n FROM counts").fetchall()) == written
