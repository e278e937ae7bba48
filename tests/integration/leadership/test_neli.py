"""NELI on a real broker: one leader at a time, handed over at once, and none that cannot prove that it leads."""

import json
import threading
import uuid
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.waiting import eventually

from harvest_lib.clock import boot_seconds
from harvest_lib.leadership import TermEnd

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def stack(breakable_stack):
    """Servers that a test may kill or freeze."""
    return breakable_stack


@pytest.fixture(scope="module")
def bootstrap_servers(stack):
    return stack.bootstrap_servers


@pytest.fixture(scope="module")
def admin(bootstrap_servers):
    return AdminClient({"bootstrap.servers": bootstrap_servers})


class Wrapped:
    """A client that notes the calls to it; the others go straight to the one inside."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)


class WrappedConsumer(Wrapped):
    """`said` holds in order where the last message heard leaves us, and what was committed; `rounds` the numbers of
    messages heard between one poll that waits and the next, `waits` when those polls came and how long they waited."""

    def __init__(self, settings):
        super().__init__(Consumer(settings))
        self.rounds, self.waits, self.said = [], [], []

    def poll(self, timeout):
        if timeout > 0:
            self.waits.append((boot_seconds(), timeout))
            self.rounds.append(0)
        message = self.client.poll(timeout)
        if message is not None and message.error() is None:
            self.rounds[-1] += 1
            self.said.append(("heard", message.offset() + 1))
        return message

    def commit(self, *, offsets, asynchronous):
        self.said.extend(("committed", partition.offset) for partition in offsets)
        return self.client.commit(offsets=offsets, asynchronous=asynchronous)


class WrappedProducer(Wrapped):
    """While `mute`, nothing is sent."""

    def __init__(self, settings, *, mute):
        super().__init__(Producer(settings))
        self.mute, self.asked = mute, 0

    def produce(self, *arguments, **named):
        self.asked += 1
        if not self.mute:
            self.client.produce(*arguments, **named)


class Wrapping:
    """Providers of clients that note what is asked of them, and the clients they made."""

    def __init__(self, *, mute=False):
        self.consumers, self.producers = [], []
        self._mute = mute

    def __iter__(self):
        return iter((self._consumer, self._producer))

    def _consumer(self, settings):
        self.consumers.append(WrappedConsumer(settings))
        return self.consumers[-1]

    def _producer(self, settings):
        self.producers.append(WrappedProducer(settings, mute=self._mute))
        return self.producers[-1]


def say(servers, topic, number):
    """Write to the leader topic what is nobody's heartbeat, all in one batch."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 200, "batch.num.messages": number})
    for _ in range(number):
        producer.produce(topic, b"not a heartbeat", partition=0)
    assert producer.flush(60) == 0


def leaders(members):
    return [member for member in members if member.term(0) is not None]


def test_one_of_several_leads_and_keeps_on_leading(join):
    """Members that join move the leadership around; then it stays, beyond the heartbeat timeout."""
    members = [join() for _ in range(3)]
    spells = {}

    def settled():
        leading = [member.term(0) for member in members]
        live = [term for term in leading if term is not None]
        assert sum(term.is_live() for term in live) <= 1
        return any(boot_seconds() - spells.setdefault(term.leader_id, boot_seconds()) > 2.5 for term in live)

    eventually(settled, "one leads for longer than the heartbeat timeout")


def test_a_rebalance_waits_for_what_is_in_flight(join):
    """The successor must not be elected while the one before still has records on the wire."""
    first = join(quiesce_timeout_seconds=300.0)
    term = first.term(60)
    term.quiesced.clear()  # as the harvester does when it begins to act
    stopper = threading.Thread(target=first.stop, args=(60,))
    stopper.start()
    eventually(lambda: term.ended is TermEnd.REVOKED, "reported in time")
    second = join()
    assert second.term(1.0) is None
    term.quiesced.set()
    stopper.join(60)
    assert second.term(60) is not None


def test_a_leader_that_hears_nothing_fences_itself_and_leads_again_under_a_new_id(join, stack):
    member = join()
    first = member.term(60)
    stack.kafka.suspend()
    try:
        eventually(lambda: first.ended is TermEnd.FENCED, "fenced")
        assert member.term(0) is None
    finally:
        stack.kafka.resume()
    second = member.term(60)
    assert second is not None
    assert second.leader_id != first.leader_id


def test_heartbeats_of_others_and_old_ones_prove_nothing(join, bootstrap_servers, group_id, monkeypatch):
    """Buffered heartbeats of our own term are as old as when they were sent, and those of another term are not ours."""
    member = join()
    term = member.term(60)
    monkeypatch.setattr(member, "_send_heartbeat", lambda *_: None)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    stop = threading.Event()

    def say():
        while not stop.wait(0.1):
            for leader_id, at in ((uuid.uuid4(), boot_seconds()), (term.leader_id, boot_seconds() - 60)):
                beat = json.dumps({"leader_id": str(leader_id), "boot_seconds": at})
                producer.produce(f"{group_id}.neli", beat, partition=0)
            producer.produce(f"{group_id}.neli", b"\xff not ours", partition=0)
            producer.flush(60)

    speaker = threading.Thread(target=say)
    speaker.start()
    try:
        eventually(lambda: term.ended is TermEnd.FENCED, "fenced in spite of what it heard")
    finally:
        stop.set()
        speaker.join(60)


def test_hearing_oneself_is_not_enough(join, monkeypatch):
    """A member that was expelled goes on fetching: without the coordinator's word it must not lead."""
    member = join()
    term = member.term(60)
    monkeypatch.setattr(member._membership, "accept", lambda sent_at: None)
    eventually(lambda: term.ended is TermEnd.FENCED, "fenced though it hears itself")
    assert member.term(1.0) is None


def test_extra_partitions_of_the_leader_topic_are_harmless(join, make_topic, group_id):
    make_topic(partitions=3, name=f"{group_id}.neli")
    members = [join() for _ in range(3)]
    eventually(lambda: len(leaders(members)) == 1, "one leads")


def test_an_election_that_ends_by_itself_is_heard_of(join, monkeypatch):
    """A standby whose election has ended must not look alive: a caller that waits for its term gets the error."""
    member = join()
    assert member.term(60) is not None

    def broken():
        raise RuntimeError("broken")

    monkeypatch.setattr(member, "_judge", broken)
    with pytest.raises(RuntimeError, match="broken"):
        eventually(lambda: member.term(0.1) and False)


def test_the_clients_come_from_the_providers(join):
    """A pool whose clients are all wrapped works as any other: it is handed over at once."""
    wrapping = Wrapping()
    members = [join(providers=wrapping, session_timeout_seconds=120.0) for _ in range(2)]
    first = eventually(lambda: next(iter(leaders(members)), None), "one leads")
    other = next(member for member in members if member is not first)
    first.stop(60)
    assert other.term(60) is not None
    assert len(wrapping.consumers) == len(wrapping.producers) == 2
    assert all(consumer.waits for consumer in wrapping.consumers)
    assert all(producer.asked for producer in wrapping.producers), "each has led"


@pytest.mark.parametrize(("interval", "poll_duration"), [(0.05, 0.02), (0.3, 0.001)])
def test_the_leader_topic_is_polled_once_in_the_min_poll_interval(join, interval, poll_duration):
    """A leader hears its heartbeats in between, which come by polls that do not wait."""
    wrapping = Wrapping()
    leader = join(providers=wrapping, min_poll_interval_seconds=interval, poll_duration_seconds=poll_duration)
    assert leader.term(60) is not None
    (consumer,) = wrapping.consumers
    seen, polls = len(consumer.waits), 6
    eventually(lambda: len(consumer.waits) > seen + polls, "it polls on")
    waits = consumer.waits[seen : seen + polls + 1]
    assert {timeout for _, timeout in waits} == {poll_duration}
    assert waits[-1][0] - waits[0][0] > polls * interval - 0.2, "never more often"


def test_all_that_waits_is_heard_at_once(join, bootstrap_servers, group_id):
    """Others' heartbeats must not keep ours waiting, one interval for each."""
    wrapping = Wrapping()
    member = join(providers=wrapping, min_poll_interval_seconds=0.5)
    assert member.term(60) is not None
    say(bootstrap_servers, f"{group_id}.neli", 50)
    eventually(lambda: max(wrapping.consumers[0].rounds) >= 50, "one round hears all of them")


def test_what_is_committed_is_where_we_are(join, make_topic, bootstrap_servers, group_id):
    """goharvest starts from there: from 0 it would hear old heartbeats for long."""
    topic = make_topic(name=f"{group_id}.neli")
    say(bootstrap_servers, topic, 50)
    wrapping = Wrapping(mute=True)
    member = join(providers=wrapping)
    (consumer,), (producer,) = wrapping.consumers, wrapping.producers
    eventually(lambda: producer.asked > 5, "it was assigned the partition, and tries")
    assert consumer.said == [], "nothing was heard, so there is nothing to commit"
    assert member.term(0) is None
    producer.mute = False
    assert member.term(60) is not None
    eventually(lambda: sum(what == "committed" for what, _ in consumer.said) > 3, "it goes on committing")
    said = list(consumer.said)
    assert said[0] == ("heard", 51)
    assert all(there == here for (_, here), (what, there) in pairwise(said) if what == "committed")
    member.stop(60)
    asking = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group_id})
    try:
        (found,) = asking.committed([TopicPartition(topic, 0)], timeout=60)
    finally:
        asking.close()
    assert found.offset > 50
