"""Delivery by acknowledgements, over real servers: the records that a reader of committed messages finds."""

import copy
import threading
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config, read_topic, steps
from support.sequenced import check_ids, read_acknowledged, read_ids
from support.topics import configure_topic
from support.waiting import eventually

from harvest_lib.audit import read_topics
from harvest_lib.checkpoints.stores import IntentStore
from harvest_lib.checkpoints.table import CheckpointTable, LeadershipStatus
from harvest_lib.consume import Intent, Sequencer, unpack
from harvest_lib.delivery import (
    BatchCommitted,
    BatchDeliverySettings,
    BatchFailed,
    Sequenced,
    Topics,
    acknowledge_again,
)
from harvest_lib.errors import CheckpointError, KafkaUnavailable, TopicCompacted
from harvest_lib.harvester.assembly.engine import Callbacks
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import Selection
from harvest_lib.source.filters import Subscription
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.resharding import Resharding

pytestmark = pytest.mark.gate(cases=2)


def always():
    return True


@pytest.fixture
def outbox(dsn, make_topic):
    made = NativeOutbox(dsn, make_topic(4))
    yield made
    made.close()


@pytest.fixture
def config(dsn, bootstrap_servers, group_id):
    def make(**settings):
        return harvest_config(
            dsn, bootstrap_servers, group_id, **{"leadership": "solo", "delivery": "sequenced", **settings}
        )

    return make


def check(outbox, delivered):
    """Every record is there once, and every key's in order."""
    assert sorted(record.outbox_id for record in delivered) == outbox.ids()
    assert steps(delivered) == []


@pytest.mark.parametrize("source", ["snapshot", "transaction_id"])
def test_each_record_is_read_once_and_in_order(outbox, config, bootstrap_servers, source):
    for records in (3_000, 1, 500):
        outbox.fill(records, keys=50)
        assert Harvest(config(source=source)).drain(60).records == records
        check(outbox, read_acknowledged(bootstrap_servers, outbox.topic))
    check(outbox, read_acknowledged(bootstrap_servers, outbox.topic, ring=10))


def test_each_record_of_a_marked_table_is_read_once(outbox, config, bootstrap_servers):
    outbox.fill(2_000, keys=50)
    ids = outbox.ids()
    assert Harvest(config(source="mark")).drain(60).records == 2_000
    found = read_acknowledged(bootstrap_servers, outbox.topic)
    assert sorted(record.outbox_id for record in found) == ids
    assert steps(found) == []
    assert outbox.count() == 0


@pytest.fixture
def subscriptions(outbox):
    return Subscriptions(outbox.connection, outbox.name, Selection(table=outbox.name.identifier))


# -- leaders, step by step


class Leader:
    """The parts of a leader; a batch is the rows of some ids."""

    def __init__(self, dsn, servers, topic):
        kafka = {"bootstrap.servers": servers}
        self.topic = topic
        table = OutboxTable.parse("outbox")
        self.checkpoints = CheckpointTable(dsn, table.subscriptions.identifier, Subscription(), outbox=table.identifier)
        self.store = IntentStore(self.checkpoints, partial(acknowledge_again, kafka))
        settings = BatchDeliverySettings(kafka=kafka, delivery_timeout_seconds=60)
        self.delivery = Sequenced(settings, Topics(kafka), self.store.save_pending, self.store.ask_again)
        self.at = OutboxCheckpoint(generation=0)

    def lead(self):
        self.store.lead(uuid4())
        self.begin()
        return self

    def begin(self):
        assert self.delivery.begin(uuid4(), always) == BatchCommitted()
        self.at = self.store.load()

    def send(self, *ids, names=(), contents=()):
        rows = [(number, self.topic, f"k{number % 7}", str(number), names, contents) for number in ids]
        assert self.delivery.send(rows, always) == {}

    def following(self):
        position = {"batch": self.at.number + 1}
        return OutboxCheckpoint(generation=self.at.generation, number=self.at.number + 1, position=position)

    def commit(self):
        """Commit what was sent, with the checkpoint that follows."""
        following = self.following()
        outcome = self.delivery.commit(following, always)
        self.at = following if isinstance(outcome, BatchCommitted) else self.at
        return outcome

    def batch(self, *ids):
        self.send(*ids)
        assert self.commit() == BatchCommitted()

    def crash_once_kept(self, *ids):
        """Deliver a batch up to where its checkpoint is kept, and do nothing more."""

        def crash(_intents):
            raise Crashed

        self.send(*ids)
        self.delivery._acknowledge = crash
        with pytest.raises(Crashed):
            self.commit()
        del self.delivery._acknowledge
        self.delivery.abandon()


class Crashed(Exception):
    """A leader that is no more."""


@pytest.fixture
def leader(dsn, bootstrap_servers, outbox):
    made = []

    def make():
        made.append(Leader(dsn, bootstrap_servers, outbox.topic))
        return made[-1]

    yield make
    for each in made:
        each.delivery.abandon()
        each.store.close()


@pytest.fixture
def read(bootstrap_servers, outbox):
    """Return the values that a reader of committed messages finds, ascending."""
    return lambda: sorted(int(record.value) for record in read_acknowledged(bootstrap_servers, outbox.topic))


def settled(leader):
    assert leader.delivery.settle(always) == BatchCommitted()


def test_what_a_leader_had_pending_when_it_was_fenced_is_never_read(leader, read, outbox):
    old = leader().lead()
    old.batch(*range(20))
    old.send(*range(20, 40))
    new = leader().lead()
    assert new.at.position == {"batch": 1}
    kept = outbox.subscription()
    assert isinstance(old.commit(), BatchFailed)
    assert old.store.leadership_status() is LeadershipStatus.FENCED
    assert outbox.subscription() == kept
    old.delivery.abandon()
    assert read() == list(range(20))
    new.batch(*range(20, 45))
    settled(new)
    assert read() == list(range(45))


def test_what_was_kept_and_not_acknowledged_is_acknowledged_by_who_leads_next(leader, read):
    old = leader().lead()
    old.batch(*range(10))
    old.crash_once_kept(*range(10, 30))
    assert read() == list(range(10))
    new = leader().lead()
    assert new.at.position == {"batch": 2}
    assert read() == list(range(30)), "before it sends anything"


@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_so_it_is_by_one_that_marks_and_acknowledges_nothing_itself(leader, read, outbox, config, delivery):
    """The rows are purged: nobody else knows that readers wait for these."""
    old = leader().lead()
    old.batch(*range(10))
    old.crash_once_kept(*range(10, 30))
    outbox.connection.execute("UPDATE outbox_subscriptions SET source = 'mark'")
    assert read() == list(range(10))
    Harvest(config(source="mark", delivery=delivery)).drain(60)
    assert read() == list(range(30))
    assert "intents" not in outbox.subscription()["checkpoint"]
    epoch = outbox.subscription()["epoch"]
    Harvest(config(source="mark", delivery=delivery)).drain(60)
    assert outbox.subscription()["epoch"] == epoch, "the row is left alone once nothing is pending"


@pytest.mark.parametrize("delivery", ["barrier", "transactional", "sequenced"])
def test_who_marks_does_not_begin_where_a_subscription_reads(outbox, config, delivery):
    """It would delete what that has not read."""
    Harvest(config(source="snapshot", subscription="search")).drain(60)
    with pytest.raises(CheckpointError, match="would delete records that they have not read") as refused:
        Harvest(config(source="mark", delivery=delivery)).drain(60)
    assert "harvest subscriptions remove search" in refused.value.next_step


@pytest.mark.parametrize("delivery", ["barrier", "transactional", "sequenced"])
def test_nor_does_one_that_was_a_standby_when_the_subscription_came(outbox, config, delivery):
    """As after a migration under a running pool."""
    engine = Harvest(config(source="mark", delivery=delivery))
    engine.start()
    try:
        eventually(lambda: engine.is_leader, "leads")
    finally:
        engine.stop()
        engine.await_stopped(60)
    outbox.connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('search', 0, 1, 'snapshot')"
    )
    with pytest.raises(CheckpointError, match="would delete"):
        engine._engine.loop(Term(uuid4()), threading.Event(), Callbacks(emit=print, delivered=print))


def test_each_id_ticks_and_acknowledgements_that_are_written_again_have_the_same(leader, bootstrap_servers, outbox):
    old = leader().lead()
    for batch in range(3):
        old.batch(*range(batch * 100, batch * 100 + 100))
    settled(old)
    by_partition = read_ids(bootstrap_servers, outbox.topic)
    check_ids(by_partition)
    old.crash_once_kept(*range(300, 400))
    kept = [Intent.of_json(each) for each in outbox.subscription()["checkpoint"]["intents"]]
    assert len({each.id for each in kept}) == 4
    leader().lead()
    again = read_ids(bootstrap_servers, outbox.topic)
    check_ids(again)
    assert {number: ids[-1] for number, ids in again.items()} == {each.partition: unpack(each.id) for each in kept}


def test_a_batch_that_failed_is_never_read(leader, read):
    """Sent again under the same producer id, it would be acknowledged with what comes after it."""
    only = leader().lead()
    for _ in range(2):  # the first time there is nothing to write again, which would give up what is pending
        first = only.at.number * 10
        only.send(*range(first, first + 20))
        only.delivery._producer._client.flush(60)
        only.delivery.abandon()
        only.begin()
        only.batch(*range(first, first + 10))
        settled(only)
    assert read() == list(range(20))


def test_a_header_of_the_same_name_that_a_record_has_of_its_own_does_not_count(leader, read):
    only = leader().lead()
    only.send(*range(10), names=["message-id"], contents=["own"])
    only.delivery._producer._client.flush(60)
    assert read() == []
    assert only.commit() == BatchCommitted()
    settled(only)
    assert read() == list(range(10))


def test_acknowledgements_that_were_kept_may_be_written_again_and_again(leader, read, bootstrap_servers, outbox):
    old = leader().lead()
    for batch in range(3):
        old.batch(*range(batch * 10, batch * 10 + 10))
    intents = [Intent.of_json(each) for each in outbox.subscription()["checkpoint"]["intents"]]
    assert len(intents) == 4
    settled(old)
    assert "intents" not in outbox.subscription()["checkpoint"], "they were written"
    for _ in range(2):
        acknowledge_again({"bootstrap.servers": bootstrap_servers}, intents)
    new = leader().lead()
    acknowledge_again({"bootstrap.servers": bootstrap_servers}, intents)
    new.batch(*range(30, 40))
    acknowledge_again({"bootstrap.servers": bootstrap_servers}, intents)
    settled(new)
    assert read() == list(range(40))


def test_a_checkpoint_whose_answer_was_lost_counts_at_once_or_never(leader, read):
    """It arrives when the leader has begun again, and has acknowledged what was kept before: that gave the batch up."""
    only = leader().lead()
    only.batch(*range(10))
    only.send(*range(10, 20))
    late = copy.copy(only.checkpoints)
    following = only.following()
    only.delivery.abandon()
    only.begin()
    assert not late.save(following)
    only.batch(*range(10, 20))
    settled(only)
    assert read() == list(range(20))


def test_a_checkpoint_whose_answer_was_lost_is_gone_on_from(leader, read):
    only = leader().lead()
    only.batch(*range(10))
    heard = only.store._mirror
    only.crash_once_kept(*range(10, 20))
    only.store._mirror = heard
    only.begin()
    assert only.at.position == {"batch": 2}
    only.batch(*range(20, 30))
    settled(only)
    assert read() == list(range(30))


def test_a_leader_that_ends_in_order_leaves_nothing_unread(leader, read, monkeypatch):
    monkeypatch.setattr("harvest_lib.delivery.sequenced._LAST_SECONDS", 60.0)
    only = leader().lead()
    only.batch(*range(1_000))
    only.delivery.abandon()
    assert read() == list(range(1_000))


def test_an_acknowledgement_that_kafka_does_not_take_is_noticed_at_rest(leader, admin, outbox):
    only = leader().lead()
    only.batch(*range(10))
    settled(only)
    admin.delete_topics([outbox.topic])[outbox.topic].result(60)
    producer = only.delivery._producer
    producer._settings = replace(producer._settings, delivery_timeout_seconds=1)  # nothing comes any more

    def is_noticed():
        producer.attempt(partial(only.delivery._produce, [Intent(topic=outbox.topic, partition=0, id=b"")]))
        return isinstance(only.delivery.settle(always), BatchFailed)

    eventually(is_noticed, "the broker has heard that the topic is gone")


@pytest.mark.parametrize("ring", [10, 8_192])
def test_the_audit_finds_what_is_acknowledged(leader, outbox, bootstrap_servers, monkeypatch, ring):
    monkeypatch.setattr("harvest_lib.audit.acknowledged.Sequencer", partial(Sequencer, ring=ring))
    only = leader().lead()
    only.batch(*range(1, 500))
    only.send(*range(500, 600))
    only.delivery._producer._client.flush(60)
    only.delivery.abandon()
    only.begin()
    only.batch(*range(500, 700))
    settled(only)
    batches = list(read_topics({"bootstrap.servers": bootstrap_servers}, [outbox.topic]))
    assert sorted(record.id for batch in batches for record in batch) == list(range(1, 700))


# -- other events of a subscription


def crashed_once_kept(config, leader):
    """Have a batch delivered and kept, by a leader that died before it acknowledged it."""
    Harvest(config()).drain(60)  # so that there is a position to go on from
    old = leader().lead()
    position = old.at.position
    old.following = lambda: OutboxCheckpoint(generation=old.at.generation, number=old.at.number + 1, position=position)
    old.crash_once_kept(*range(20))
    old.store.close()


@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional"])
def test_another_delivery_acknowledges_what_was_kept(outbox, config, leader, read, delivery):
    """Else a batch that its position has passed would be read by nobody."""
    crashed_once_kept(config, leader)
    Harvest(config(delivery=delivery)).drain(60)
    assert read() == list(range(20))


def test_what_was_kept_stays_so_when_the_subscription_is_moved(config, leader, read, subscriptions):
    crashed_once_kept(config, leader)
    subscriptions.rewind("default", to="now")
    Harvest(config()).drain(60)
    assert read() == list(range(20))


def test_what_was_kept_stays_so_when_the_subscription_is_divided(config, leader, read, subscriptions):
    crashed_once_kept(config, leader)
    eventually(lambda: not subscriptions.get("default")[0].is_led, "the server has noticed that it is gone")
    assert Resharding(subscriptions, "default", 2).run(60).after == 2
    Harvest(config(shards=2)).drain(60)
    assert read() == list(range(20))


def test_a_topic_that_is_not_there_holds_up_nobody_and_is_acknowledged_once_it_is(leader, read, outbox, monkeypatch):
    """A broker that has just come back may know less than there is."""
    old = leader().lead()
    old.crash_once_kept(*range(10))
    with monkeypatch.context() as patched:
        patched.setattr("harvest_lib.delivery.sequenced.topic_partitions", lambda _: {})
        new = leader().lead()
        new.batch(*range(10, 20))
        settled(new)
        assert read() == list(range(10, 20))
        kept = outbox.subscription()["checkpoint"]["intents"]
        assert [topic for topic, *_ in kept] == [outbox.topic] * 4, "of the first batch only: the second's were written"
    leader().lead()
    assert read() == list(range(20))


def test_a_leader_acknowledges_what_it_owed_once_the_topic_is_there(leader, read, monkeypatch):
    monkeypatch.setattr("harvest_lib.checkpoints.stores._ASK_SECONDS", 0.0)
    old = leader().lead()
    old.crash_once_kept(*range(10))
    with monkeypatch.context() as patched:
        patched.setattr("harvest_lib.delivery.sequenced.topic_partitions", lambda _: {})
        new = leader().lead()
    new.batch(*range(10, 20))
    settled(new)
    assert sorted(read()) == list(range(20))


@pytest.mark.full
def test_kafka_that_takes_no_acknowledgement_says_so(leader, monkeypatch):
    monkeypatch.setattr("harvest_lib.delivery.sequenced._AGAIN_SECONDS", 1.0)
    old, new = leader().lead(), leader()
    old.crash_once_kept(*range(10))
    new.store._acknowledge = partial(acknowledge_again, {"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(KafkaUnavailable, match="could not be acknowledged") as caught:
        new.lead()
    assert old.topic in caught.value.evidence


# -- compacted topics


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_that_a_subscription_is_limited_to_is_refused_at_the_start(
    subscriptions, make_topic, config, policy
):
    topic = make_topic(1, **{"cleanup.policy": policy})
    subscriptions.add("narrow", topics=[topic])
    with pytest.raises(TopicCompacted, match=f"{topic}.*compacted") as caught:
        Harvest(config(subscription="narrow")).start()
    assert "cleanup.policy" in caught.value.evidence
    assert f"--alter --topic {topic}" in caught.value.next_step


def test_no_command_is_printed_for_topics_that_are_compacted_by_right(subscriptions, make_topic, config, group_id):
    """Kafka's own and ours: a subscription that is limited to them starts, and parks what is for them."""
    own = make_topic(1, f"{group_id}.default.checkpoint", **{"cleanup.policy": "compact"})
    subscriptions.add("narrow", topics=["__consumer_offsets", own])
    assert Harvest(config(subscription="narrow")).drain(60).records == 0


@pytest.mark.parametrize("named", ["compacted", "__consumer_offsets"])
def test_a_waiting_record_for_a_compacted_topic_keeps_nobody_from_starting(
    outbox, make_topic, config, bootstrap_servers, named
):
    """Any writer can name one. Later records of its key are held in its topic, and delivered to another."""
    topic = outbox.topic
    outbox.topic = make_topic(1, **{"cleanup.policy": "compact"}) if named == "compacted" else named
    outbox.fill(2, keys=1)
    outbox.topic = topic
    outbox.fill(9, keys=1)
    assert Harvest(config()).drain(60).records == 9, "all that is for another topic"
    (first, second) = outbox.connection.execute("SELECT id, held, reason FROM outbox_parked_ids ORDER BY id").fetchall()
    assert first[:2] == (1, False)
    assert "cleanup.policy=compact" in first[2] or first[2] == "the topic is Kafka's own"
    assert second == (2, True, "held behind 1")
    assert [record.outbox_id for record in read_acknowledged(bootstrap_servers, topic)] == list(range(3, 12))


def test_records_for_a_compacted_topic_that_come_later_are_parked(outbox, make_topic, config, bootstrap_servers):
    """One writer's mistake stops nobody else, and no later start."""
    compacted, topic = make_topic(1, **{"cleanup.policy": "compact"}), outbox.topic
    outbox.fill(10)
    with Harvest(config()) as harvest:
        eventually(lambda: harvest.delivered_records == 10)
        outbox.topic = compacted
        outbox.fill(1, keys=1)
        entries = "SELECT id, held, reason FROM outbox_parked_ids ORDER BY id"
        found = eventually(lambda: outbox.connection.execute(entries).fetchall(), "it was parked")
    assert [each[:2] for each in found] == [(11, False)]
    assert "the topic is compacted (cleanup.policy=compact)" in found[0][2]
    outbox.fill(1, keys=1)
    outbox.topic = topic
    outbox.fill(9, keys=1)
    Harvest(config()).drain(60)
    assert outbox.connection.execute(entries).fetchall() == [*found, (12, True, "held behind 11")]
    assert read_topic(bootstrap_servers, compacted) == []
    ids = sorted(record.outbox_id for record in read_acknowledged(bootstrap_servers, topic))
    assert ids == [*range(1, 11), *range(13, 22)], "its key goes on in another topic"


# -- a topic that stops to take acknowledgements


def append(outbox, key, topic):
    outbox.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, 'v')", (topic, key)
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}),
        ({"max.message.bytes": "20"}, {"max.message.bytes": "1000000"}),
    ],
)
def test_a_topic_that_refuses_acknowledgements_costs_itself_only(
    outbox, config, bootstrap_servers, make_topic, admin, bad, good, caplog
):
    """I8: others go on; its own records wait, in order, until it is fixed and operators want them sent."""
    other = make_topic(1)
    with Harvest(config()) as harvest:
        append(outbox, "a", other)
        append(outbox, "b", outbox.topic)
        eventually(lambda: harvest.delivered_records == 2, "both topics are known")
        configure_topic(admin, other, bad)

        def is_parked():
            append(outbox, "a", other)
            return outbox.connection.execute("SELECT count(*) FROM outbox_parked_ids").fetchone()[0] > 1

        eventually(is_parked, "what comes is parked")
        before = harvest.delivered_records
        append(outbox, "b", outbox.topic)
        eventually(lambda: harvest.delivered_records == before + 1, "the other topic goes on")
        configure_topic(admin, other, good)

        def is_caught_up():
            outbox.connection.execute("UPDATE outbox_parked_ids SET retry = true WHERE NOT held")
            return outbox.connection.execute("SELECT count(*) FROM outbox_parked_ids").fetchone()[0] == 0

        eventually(is_caught_up, "all is sent again")
    written = [each for (each,) in outbox.connection.execute("SELECT id FROM outbox WHERE kafka_topic = %s", (other,))]
    assert [each.outbox_id for each in read_acknowledged(bootstrap_servers, other)] == sorted(written)
