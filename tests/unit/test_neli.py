"""What proves to a NELI member that it leads, by a clock that is passed in."""

import time

import pytest
from confluent_kafka import KafkaError, TopicPartition

from harvest_lib.leadership import Neli, TermEnd
from harvest_lib.leadership.neli import NeliSettings

TIMEOUT = 5.0


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def member(clock):
    """Make a candidate: partition 0 is its own, nothing is proved."""
    made = Neli(NeliSettings(topic="t", group_id="g", heartbeat_timeout_seconds=TIMEOUT), {}, clock)
    stand(made)
    return made


def stand(member, *shards):
    """Have a member assigned the partitions of some shards; nothing is proved."""
    for shard in shards or (0,):
        member._candidacies[shard].assigned = True
        member._candidacies[shard].stand()


def hear(member, sent_at, shard=0):
    candidacy = member._candidacies[shard]
    candidacy.hear(candidacy.beat(sent_at), 0)


def commit(member, sent_at, error=None):
    member._commits.append(sent_at)
    member._on_commit(error, [TopicPartition("t", 0, 1)])


@pytest.mark.parametrize(("heard", "committed"), [(101.0, 103.0), (103.0, 101.0)])
def test_the_lease_runs_from_when_the_older_proof_was_sent(member, clock, heard, committed):
    clock.now = 103.5
    hear(member, heard)
    commit(member, committed)
    member._judge()
    term = member.term(0)
    clock.now = 101.0 + TIMEOUT - 0.01
    assert term.is_live()
    clock.now = 101.0 + TIMEOUT
    assert term.ended is TermEnd.FENCED


@pytest.mark.parametrize("missing", ["heartbeat", "commit"])
def test_one_proof_is_not_enough(member, clock, missing):
    clock.now = 101.0
    if missing == "heartbeat":
        commit(member, clock.now)
    else:
        hear(member, clock.now)
    member._judge()
    assert member.term(0) is None


def test_a_commit_of_before_it_stood_proves_nothing(member, clock):
    """It was accepted by a generation that may be over."""
    commit(member, 99.9)
    clock.now = 101.0
    hear(member, clock.now)
    member._judge()
    assert member.term(0) is None
    commit(member, 100.0)
    member._judge()
    assert member.term(0) is not None


def test_a_commit_that_was_refused_proves_nothing(member, clock):
    hear(member, clock.now)
    commit(member, clock.now, KafkaError(KafkaError.ILLEGAL_GENERATION))
    member._judge()
    assert member.term(0) is None


def test_commits_are_answered_in_the_order_they_were_sent(member, clock):
    clock.now = 103.0
    hear(member, clock.now)
    member._commits.extend([101.0, 103.0])
    member._on_commit(None, [])
    member._judge()
    term = member.term(0)
    clock.now = 101.0 + TIMEOUT
    assert not term.is_live(), "by the first answer it is known to be a member up to the first commit"


def test_whoever_was_fenced_stands_again_under_a_new_id(member, clock):
    hear(member, clock.now)
    commit(member, clock.now)
    member._judge()
    first = member.term(0)
    clock.now += TIMEOUT
    member._judge()
    assert member.term(0) is None
    hear(member, clock.now)
    commit(member, clock.now)
    member._judge()
    assert member.term(0).leader_id != first.leader_id


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_hand_over_after_records_were_abandoned_takes_as_long_as_after_a_kill(clock, abandoned):
    """What was on the wire may arrive that long, behind what the successor sends."""
    settings = NeliSettings(topic="t", group_id="g", session_timeout_seconds=0.3)
    made = Neli(settings, {}, clock)
    stand(made)
    hear(made, clock.now)
    commit(made, clock.now)
    made._judge()
    made.term(0).abandoned = abandoned
    began = time.monotonic()
    made._on_revoke(None, [TopicPartition("t", 0)])
    assert (time.monotonic() - began >= 0.3) is abandoned
