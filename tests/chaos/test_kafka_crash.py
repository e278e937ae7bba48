"""Kafka dies or loses what it had while records are delivered exactly once: nothing repeats, or the harvester halts."""

import itertools
import threading
import time
import uuid
from collections import defaultdict

import pytest
from confluent_kafka import Producer
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config, read_topic, steps
from support.waiting import eventually

from harvest_lib.checkpoints.topic import ensure_checkpoint_topic
from harvest_lib.delivery import (
    BatchCommitted,
    BatchDeliverySettings,
    CheckpointPlace,
    Topics,
    Transactional,
    TransactionalProducer,
)
from harvest_lib.errors import CheckpointError
from harvest_lib.harvester.harvest import STOP_TIMEOUT_SECONDS, Harvest, State

pytestmark = pytest.mark.full

RECORDS = 20_000


@pytest.fixture
def outbox(dsn, make_topic):
    made = NativeOutbox(dsn, make_topic(partitions=4))
    yield made
    made.close()


@pytest.fixture
def config(outbox, bootstrap_servers, group_id):
    # A coordinator that starts again may fence our producer: the term ends, and the next waits for the session timeout.
    soon = {"session_timeout_seconds": 6.0, "limits": {"heartbeat_timeout_seconds": 3.0}}
    return harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo", delivery="transactional", **soon)


def repeated(found):
    """Return each record that is there more than once: its id, with the term, partition and offset of each time."""
    places = defaultdict(list)
    for record in found:
        places[record.outbox_id].append((str(record.leader_id), record.partition, record.offset))
    return sorted((each, where) for each, where in places.items() if len(where) > 1)


def check_exactly_once(outbox, bootstrap_servers):
    found = read_topic(bootstrap_servers, outbox.topic, isolation="read_committed")
    ids, committed = {record.outbox_id for record in found}, outbox.ids()
    assert (sorted({*committed} - ids), repeated(found)) == ([], [])
    assert sorted(ids) == committed
    assert steps(found) == []


# -- a broker that dies, or does not answer


class DoomedProducer:
    """A producer that calls `before_commit` when all of a transaction has landed and it is to be committed.

    Not later: a broker that dies as it commits may forget to write that down, see docs/exactly-once.md.
    """

    def __init__(self, settings, before_commit):
        self._producer, self._before_commit = Producer(settings), before_commit

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def __len__(self):
        return len(self._producer)

    def commit_transaction(self, timeout):
        self._before_commit()
        self._producer.commit_transaction(timeout)


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("killed", 0),
        pytest.param("killed", 20, marks=pytest.mark.long),
        pytest.param("frozen", 20, marks=pytest.mark.long),
    ],
    ids=["killed", "killed_for_long", "frozen_for_long"],
)
def test_kafka_goes_and_comes_back_in_mid_drain(outbox, config, stack, bootstrap_servers, how, seconds):
    """The long ones are longer than Kafka leaves a transaction open: it aborts ours, and refuses its producer."""
    outbox.fill(RECORDS, keys=200)
    gone = threading.Event()

    commits = itertools.count(1)

    def strike():
        if next(commits) == 3:
            (stack.kafka.kill if how == "killed" else stack.kafka.suspend)()
            gone.set()

    halted = None
    try:
        with Harvest(config, kafka_producer_provider=lambda settings: DoomedProducer(settings, strike)) as harvest:
            assert gone.wait(60)
            began = time.monotonic()
            eventually(lambda: time.monotonic() - began >= seconds, seconds=seconds + 1)
            (stack.kafka.start if how == "killed" else stack.kafka.resume)()
            assert harvest.delivered_records < RECORDS, "it was over before it began"

            def there():  # a batch whose commit was answered to nobody may have been committed, and is not counted
                return len(read_topic(bootstrap_servers, outbox.topic, isolation="read_committed"))

            # An error that killed the harvester is raised here.
            eventually(lambda: harvest.await_stopped(0) or there() >= RECORDS, "the backlog is empty")
            assert harvest.state is State.RUNNING
    except CheckpointError as error:  # a broker that starts again may forget to end a transaction: then we halt
        halted = error.cause
    if halted is None:
        check_exactly_once(outbox, bootstrap_servers)
    else:
        assert "hangs" in halted
        assert repeated(read_topic(bootstrap_servers, outbox.topic, isolation="read_committed")) == []


def test_a_stop_while_kafka_is_away_ends_in_time(outbox, config, stack, bootstrap_servers):
    outbox.fill(RECORDS, keys=200)
    harvest = Harvest(config)
    harvest.start()
    eventually(lambda: harvest.delivered_records > 300, "busy")
    stack.kafka.suspend()
    try:
        harvest.stop()
        assert harvest.await_stopped(STOP_TIMEOUT_SECONDS)
    finally:
        stack.kafka.resume()
    Harvest(config).drain(60)
    check_exactly_once(outbox, bootstrap_servers)


def test_a_delivery_lets_go_of_an_open_transaction_in_time(stack, make_topic, bootstrap_servers):
    """To abort a transaction is to wait for a broker, and none answers."""
    settings, topic = {"bootstrap.servers": bootstrap_servers}, make_topic()
    place = CheckpointPlace(topic=topic, partition=0, key="k")
    producer = TransactionalProducer(
        BatchDeliverySettings(kafka=settings, delivery_timeout_seconds=5), Topics(settings), topic, place
    )
    delivery = Transactional([producer], lambda checkpoint: checkpoint)
    assert delivery.begin(uuid.uuid4(), lambda: True) == BatchCommitted()
    delivery.send([(number, topic, "k", "v", [], []) for number in range(50)], lambda: True)
    assert producer._producer._client.flush(60) == 0
    stack.kafka.suspend()
    try:
        began = time.monotonic()
        delivery.abandon()
        assert time.monotonic() - began < 5
    finally:
        stack.kafka.resume()


# -- checkpoints that do not fit


def test_a_checkpoint_topic_that_was_made_anew(outbox, config, admin, make_topic):
    outbox.fill(500)
    Harvest(config).drain(60)
    topic = config.checkpoint_topic
    assert outbox.subscription()["checkpoint"]["kept_in"] == "kafka"
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")
    make_topic(1, name=topic, **{"cleanup.policy": "compact"})
    outbox.fill(500)
    before = outbox.subscription()["checkpoint"]
    with pytest.raises(CheckpointError) as raised:
        Harvest(config).drain(60)
    assert "harvest subscriptions rewind" in raised.value.next_step
    assert topic in raised.value.cause
    before["leaders"] = outbox.subscription()["checkpoint"]["leaders"]  # who stood up there is noted
    assert outbox.subscription()["checkpoint"] == before


def test_a_checkpoint_behind_a_transaction_that_hangs_is_not_taken_for_the_last(outbox, config, bootstrap_servers):
    """As a broker leaves one that dies right after a commit; here another producer has it open. The checkpoint before
    fits the mirror: read as the last, what followed it would be sent again."""
    outbox.fill(500)
    Harvest(config).drain(60)
    topic = config.checkpoint_topic
    hanging = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"{topic}.other"})
    hanging.init_transactions(10)
    hanging.begin_transaction()
    hanging.produce(topic, "{}", "default/0")
    assert hanging.flush(60) == 0
    outbox.fill(500)
    with pytest.raises(CheckpointError, match="hangs") as raised:
        Harvest(config).drain(60)
    assert f"open in partition 0 of '{topic}' since offset" in raised.value.evidence
    assert "1 offsets behind it" in raised.value.evidence
    assert "kafka-transactions.sh" in raised.value.next_step
    hanging.abort_transaction(10)
    Harvest(config).drain(60)
    check_exactly_once(outbox, bootstrap_servers)


def test_a_partition_of_checkpoints_that_is_missing_is_made_while_it_leads(outbox, bootstrap_servers, group_id, admin):
    """The topic was recreated with one partition, for two shards: each says that it has lost its checkpoint."""
    settings = {"leadership": "solo", "delivery": "transactional", "shards": 2}
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, **settings)
    outbox.fill(500)
    Harvest(config).drain(60)
    topic = config.checkpoint_topic
    outbox.fill(500)
    with pytest.raises(CheckpointError, match="was deleted and recreated"), Harvest(config) as harvest:
        eventually(lambda: harvest.delivered_records == 500, "all is delivered")
        admin.delete_topics([topic])[topic].result(60)
        eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")
        ensure_checkpoint_topic({"bootstrap.servers": bootstrap_servers}, topic, 1)
        outbox.fill(500)
        eventually(lambda: harvest.await_stopped(0.1), "it ends, with its error")


def test_a_checkpoint_topic_of_another_outbox(outbox, config, bootstrap_servers, group_id):
    """Two configurations of one group and subscription, with different tables."""
    outbox.fill(500)
    Harvest(config).drain(60)
    other = NativeOutbox(outbox.dsn, outbox.topic, table="other")
    other.fill(500)
    theirs = harvest_config(
        outbox.dsn,
        bootstrap_servers,
        group_id,
        leadership="solo",
        delivery="transactional",
        outbox_table="other",
    )
    with pytest.raises(CheckpointError) as raised:
        Harvest(theirs).drain(60)
    assert "another outbox" in raised.value.cause
    assert "leaderGroupID" in raised.value.next_step
    other.close()
    outbox.fill(500)
    Harvest(config).drain(60)  # it is as it was
    check_exactly_once(outbox, bootstrap_servers)
