"""NELI on a real broker: one leader at a time, handed over at once, and none that cannot prove that it leads."""

import json
import threading
import uuid

import pytest
from confluent_kafka import Producer
from support.waiting import eventually

from harvest_lib.deadline import boot_seconds
from harvest_lib.leadership import Neli, TermEnd
from harvest_lib.leadership.neli import NeliSettings


@pytest.fixture
def pool(bootstrap_servers, group_id):
    """Make members of one pool; all are stopped at the end. Terms are quiesced at once unless `quiesce` is false."""
    members = []

    def join(**settings):
        chosen = {
            "topic": f"{group_id}.neli",
            "group_id": group_id,
            "heartbeat_timeout_seconds": 1.5,
            "session_timeout_seconds": 3.0,
            "quiesce_timeout_seconds": 0.0,
            **settings,
        }
        member = Neli(NeliSettings(**chosen), {"bootstrap.servers": bootstrap_servers})
        member.start()
        members.append(member)
        return member

    yield join
    for member in members:
        member.stop(5)


def leaders(members):
    return [member for member in members if member.term(0) is not None]


def test_one_of_several_leads_and_keeps_on_leading(pool):
    """Members that join move the leadership around; then it stays, beyond the heartbeat timeout."""
    members = [pool() for _ in range(3)]
    spells = {}

    def settled():
        leading = [member.term(0) for member in members]
        live = [term for term in leading if term is not None]
        assert sum(term.is_live() for term in live) <= 1
        return any(boot_seconds() - spells.setdefault(term.leader_id, boot_seconds()) > 2.5 for term in live)

    eventually(settled, 20, "one leads for longer than the heartbeat timeout")


def test_a_leader_that_leaves_is_followed_without_waiting_for_its_session(pool):
    members = [pool(), pool()]
    first = eventually(lambda: next(iter(leaders(members)), None), 20, "one leads")
    other = next(member for member in members if member is not first)
    term = first.term(0)
    first.stop(5)
    left = boot_seconds()
    assert term.ended is TermEnd.REVOKED
    following = other.term(10)
    assert following is not None
    assert boot_seconds() - left < 2.0, "the session lasts 3 s"
    assert following.leader_id != term.leader_id


def test_a_rebalance_waits_for_what_is_in_flight(pool):
    """The successor must not be elected while the one before still has records on the wire."""
    first = pool(quiesce_timeout_seconds=30.0)
    term = first.term(20)
    term.quiesced.clear()  # as the harvester does when it begins to act
    stopper = threading.Thread(target=first.stop, args=(20,))
    stopper.start()
    eventually(lambda: term.ended is TermEnd.REVOKED, 10, "told in time")
    second = pool()
    assert second.term(1.0) is None
    term.quiesced.set()
    stopper.join()
    assert second.term(10) is not None


def test_a_leader_that_hears_nothing_fences_itself_and_leads_again_under_a_new_id(pool, stack):
    member = pool()
    first = member.term(20)
    stack.kafka.suspend()
    try:
        frozen_at = boot_seconds()
        eventually(lambda: first.ended is TermEnd.FENCED, 5, "fenced")
        assert boot_seconds() - frozen_at < 2.0, "within the heartbeat timeout"
        assert member.term(0) is None
    finally:
        stack.kafka.resume()
    second = member.term(20)
    assert second is not None
    assert second.leader_id != first.leader_id


def test_heartbeats_of_others_and_old_ones_prove_nothing(pool, bootstrap_servers, group_id, monkeypatch):
    """Buffered heartbeats of our own term are as old as when they were sent, and those of another term are not ours."""
    member = pool()
    term = member.term(20)
    monkeypatch.setattr(member, "_beat", lambda beats, now: None)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    stop = threading.Event()

    def say():
        while not stop.wait(0.1):
            for leader_id, at in ((uuid.uuid4(), boot_seconds()), (term.leader_id, boot_seconds() - 60)):
                beat = json.dumps({"leader_id": str(leader_id), "boot_seconds": at})
                producer.produce(f"{group_id}.neli", beat, partition=0)
            producer.produce(f"{group_id}.neli", b"\xff not ours", partition=0)
            producer.flush(5)

    speaker = threading.Thread(target=say)
    speaker.start()
    try:
        eventually(lambda: term.ended is TermEnd.FENCED, 4, "fenced in spite of what it heard")
    finally:
        stop.set()
        speaker.join()


def test_hearing_oneself_is_not_enough(pool, monkeypatch):
    """A member that was expelled goes on fetching: without the coordinator's word it must not lead."""
    member = pool()
    term = member.term(20)
    monkeypatch.setattr(member, "_on_commit_accepted", lambda sent_at: None)
    eventually(lambda: term.ended is TermEnd.FENCED, 4, "fenced though it hears itself")
    assert member.term(1.0) is None


def test_extra_partitions_of_the_leader_topic_are_harmless(pool, make_topic, group_id):
    make_topic(partitions=3, name=f"{group_id}.neli")
    members = [pool() for _ in range(3)]
    eventually(lambda: len(leaders(members)) == 1, 20, "one leads")


def test_an_election_that_ends_by_itself_is_heard_of(pool, monkeypatch):
    """A standby that stands no more must not look alive: whoever waits for its term is told."""
    member = pool()
    assert member.term(20) is not None

    def broken():
        raise RuntimeError("broken")

    monkeypatch.setattr(member, "_judge", broken)
    with pytest.raises(RuntimeError, match="broken"):
        eventually(lambda: member.term(0.1) and False, 10)
