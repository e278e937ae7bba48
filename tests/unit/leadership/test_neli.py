"""Proofs to a NELI member that it leads, by a clock that is passed in."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, ThrottleEvent, TopicPartition

from harvest_lib.leadership import Neli, TermEnd, neli
from harvest_lib.leadership.leader_topic import topic_trouble
from harvest_lib.leadership.neli_settings import NeliSettings

pytestmark = pytest.mark.quick

TIMEOUT = 5.0


@pytest.fixture
def waited(monkeypatch):
    """For how many seconds each hand-over was held up; none of them passes."""
    seconds = []
    event = SimpleNamespace(wait=seconds.append)
    monkeypatch.setattr(neli, "threading", SimpleNamespace(Event=lambda: event))
    return seconds


def made_of(clock, **settings):
    return Neli(NeliSettings(topic="t", group_id="g", heartbeat_timeout_seconds=TIMEOUT, **settings), {}, clock)


@pytest.fixture
def member(clock):
    """Make a candidate: partition 0 is its own, nothing is proved."""
    made = made_of(clock)
    stand(made)
    return made


def stand(member, *shards):
    """Have a member assigned the partitions of some shards; nothing is proved."""
    for shard in shards or (0,):
        member._candidacies[shard].assigned = True
        member._candidacies[shard].begin()


def judge(member):
    member._judge()


def hear(member, sent_at, shard=0):
    candidacy = member._candidacies[shard]
    candidacy.receive(candidacy.heartbeat(sent_at), 0)
    judge(member)


def commit(member, *sent, error=None):
    """Have the first of the commits that were sent at these times answered."""
    member._membership._sent.extend(sent)
    member._membership.answered(error, [TopicPartition("t", 0, 1)])
    judge(member)


def revoke(member, *partitions):
    member._on_revoke(None, [TopicPartition("t", partition) for partition in partitions])


def prove(member, clock, *shards):
    """Have a member prove now that it leads some shards."""
    for shard in shards or (0,):
        hear(member, clock.now, shard)
    commit(member, clock.now)


@pytest.mark.parametrize(("heard", "committed"), [(101.0, 103.0), (103.0, 101.0)])
def test_the_lease_runs_from_when_the_older_proof_was_sent(member, clock, heard, committed):
    clock.now = 103.5
    hear(member, heard)
    commit(member, committed)
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
    assert member.term(0) is None


def test_a_commit_of_before_it_stood_proves_nothing(member, clock):
    """It was accepted by a generation that may be over."""
    commit(member, 99.9)
    clock.now = 101.0
    hear(member, clock.now)
    assert member.term(0) is None
    commit(member, 100.0)
    assert member.term(0) is not None


def test_a_commit_that_was_refused_proves_nothing(member, clock):
    hear(member, clock.now)
    commit(member, clock.now, error=KafkaError(KafkaError.ILLEGAL_GENERATION))
    assert member.term(0) is None


def test_commits_are_answered_in_the_order_they_were_sent(member, clock):
    clock.now = 103.0
    hear(member, clock.now)
    commit(member, 101.0, 103.0)
    term = member.term(0)
    clock.now = 101.0 + TIMEOUT
    assert not term.is_live(), "by the first answer it is known to be a member up to the first commit"


def test_a_candidate_that_cannot_prove_itself_says_so_once(member, clock, caplog):
    def complaints():
        return [record for record in caplog.records if record.message == "election_stalled"]

    clock.now += 2 * TIMEOUT - 0.1
    judge(member)
    assert complaints() == []
    clock.now += 0.2
    hear(member, clock.now)
    judge(member)
    (complaint,) = complaints()
    assert (complaint.shard, complaint.heartbeat_heard, complaint.commit_accepted_seconds_ago) == (0, True, None)


def test_whoever_was_fenced_stands_again_under_a_new_id(member, clock):
    prove(member, clock)
    first = member.term(0)
    clock.now += TIMEOUT
    judge(member)
    assert member.term(0) is None
    prove(member, clock)
    assert member.term(0).leader_id != first.leader_id


@pytest.mark.parametrize("shards", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("abandoned", [None, 0, -1])
def test_a_hand_over_after_records_were_abandoned_takes_as_long_as_after_a_kill(clock, waited, shards, abandoned):
    """Records on the wire may arrive that long, behind those that the successor sends."""
    made = leads(clock, *shards, session_timeout_seconds=8.0)
    if abandoned is not None:
        made.terms(0)[abandoned].abandoned = True
    revoke(made, *shards)
    assert waited == ([] if abandoned is None else [8.0])


@pytest.mark.parametrize(("abandoned", "later"), [(False, 0.0), (True, 0.0), (True, 3.0), (True, 8.0)])
def test_what_a_fenced_term_abandoned_holds_up_a_hand_over_soon_after(clock, waited, abandoned, later):
    """A term that followed it here was held off; the successor elsewhere would begin at once."""
    made = leads(clock, 0, session_timeout_seconds=8.0)
    term = made.term(0)
    term.end(TermEnd.FENCED)
    judge(made)
    term.abandoned = abandoned
    clock.now += later
    revoke(made, 0)
    assert waited == ([8.0 - later] if abandoned and later < 8.0 else [])


# -- several shards


def leads(clock, *shards, **settings):
    """Make a member that leads some shards of three."""
    made = made_of(clock, shards=3, **settings)
    stand(made, *shards)
    prove(made, clock, *shards)
    assert [term.shard for term in made.terms(0)] == list(shards)
    return made


class Message:
    """A message that arrives by some partition."""

    def __init__(self, partition, value=b"", offset=7):
        self._said = {"partition": partition, "value": value, "offset": offset, "error": None}

    def __getattr__(self, name):
        return lambda: self._said[name]


def test_one_commit_proves_membership_for_all_shards_and_a_heartbeat_its_own_alone(clock):
    member = made_of(clock, shards=3)
    stand(member, 0, 2)
    commit(member, clock.now)
    hear(member, clock.now, 2)
    (term,) = member.terms(0)
    assert term.shard == 2
    hear(member, clock.now, 0)
    assert [term.shard for term in member.terms(0)] == [0, 2]
    assert len({term.leader_id for term in member.terms(0)}) == 2


def test_a_shard_without_fresh_heartbeats_is_fenced_alone(clock):
    member = leads(clock, 0, 1)
    first, second = member.terms(0)
    clock.now += TIMEOUT - 1
    prove(member, clock, 1)
    clock.now += 1
    judge(member)
    assert first.ended is TermEnd.FENCED
    assert member.terms(0) == (second,)
    hear(member, clock.now, 0)
    commit(member, clock.now)
    again, same = member.terms(0)
    assert again.leader_id != first.leader_id
    assert same is second


@pytest.mark.parametrize("why", ["no accepted commit", "a lost membership"])
def test_without_membership_all_shards_are_fenced(clock, why):
    member = leads(clock, 0, 1)
    terms = member.terms(0)
    if why == "a lost membership":
        member._on_lost(None, [])  # whatever it names
    else:
        clock.now += TIMEOUT
        for shard in (0, 1):
            hear(member, clock.now, shard)
    assert {term.ended for term in terms} == {TermEnd.FENCED}
    assert member.terms(0) == ()


def test_a_heartbeat_that_came_through_another_shards_partition_proves_nothing(clock):
    """It says that the other partition can be reached."""
    member = made_of(clock, shards=3)
    stand(member, 0, 1)
    commit(member, clock.now)
    member._receive(Message(1, member._candidacies[0].heartbeat(clock.now)))
    judge(member)
    assert member.terms(0) == ()


def test_partitions_beyond_the_shards_mean_nothing(clock):
    member = leads(clock, 0)
    terms = member.terms(0)
    member._receive(Message(3, b"not a heartbeat"))
    revoke(member, 3, 4)
    assert member.terms(0) == terms


def test_what_is_revoked_ends_and_the_rest_goes_on(clock):
    member = leads(clock, 0, 1, 2)
    first, second, third = member.terms(0)
    revoke(member, 0, 2)
    assert first.ended is third.ended is TermEnd.REVOKED
    hear(member, clock.now, 0)
    assert member.terms(0) == (second,), "what is not its own any more is not stood for"


def test_all_terms_of_a_rebalance_end_before_any_is_waited_for_and_share_one_deadline(clock, monkeypatch):
    monkeypatch.setattr("harvest_lib.clock.boot_seconds", clock)
    member = leads(clock, 0, 1, 2, quiesce_timeout_seconds=4.0)
    terms = member.terms(0)
    given = []

    def wait(seconds):
        assert [term.ended for term in terms] == [TermEnd.REVOKED] * 3
        given.append(seconds)
        clock.now += min(seconds, 3.0)

    for term in terms:
        term.quiesced.clear()
        term.quiesced.wait = wait
    revoke(member, 0, 1, 2)
    assert given == [4.0, 1.0, 0.0]


class Clients:
    """A consumer and a producer that note what they are asked."""

    def __init__(self):
        self.committed, self.beaten = [], []

    def commit(self, *, offsets, asynchronous):
        assert asynchronous
        self.committed.append({offset.partition: offset.offset for offset in offsets})

    def produce(self, _topic, _beat, *, partition):
        self.beaten.append(partition)


def test_heartbeats_go_through_the_partition_of_each_shard_and_one_commit_names_where_they_are(clock):
    member, clients = made_of(clock, shards=3), Clients()
    stand(member, 0, 2)
    member._prove(clients, clients)
    assert (clients.beaten, clients.committed) == ([0, 2], []), "nothing was heard, so there is nothing to commit"
    member._receive(Message(2, offset=41))
    member._receive(Message(0, offset=7))
    member._receive(Message(1, offset=99))
    member._prove(clients, clients)
    assert clients.committed == [{0: 8, 2: 42}], "not those that are another's"
    member._prove(clients, clients)
    assert clients.beaten == [0, 2, 0, 2], "not before it is time"
    clock.now += TIMEOUT
    member._prove(clients, clients)
    assert clients.beaten == [0, 2] * 3
    assert len(clients.committed) == 1, "one that is not answered is not followed by another"


# -- obstacles to leading


def troubles(caplog):
    return [record.reason for record in caplog.records if record.message == "election_troubled"]


def test_each_kind_of_error_of_a_heartbeat_is_logged_once_until_the_member_leads(member, clock, caplog):
    refused, late = KafkaError(KafkaError.TOPIC_EXCEPTION), KafkaError(KafkaError._MSG_TIMED_OUT)
    for _ in range(3):
        member._on_heartbeat(refused, None)
        member._on_heartbeat(late, None)
    assert len(troubles(caplog)) == 2
    assert refused.str() in troubles(caplog)[0]
    assert refused.str() in member._trouble.text
    assert late.str() in member._trouble.text
    prove(member, clock)
    assert member.term(0) is not None
    assert member._trouble.text == "", "it leads"
    member._on_heartbeat(refused, None)
    assert len(troubles(caplog)) == 3


def test_an_error_of_a_commit_is_logged_and_one_of_a_rebalance_is_not(member, clock, caplog):
    commit(member, clock.now, error=KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
    assert troubles(caplog) == []
    commit(member, clock.now, error=KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE))
    (reason,) = troubles(caplog)
    assert reason.startswith("commit: ")


def test_a_quota_that_delays_heartbeats_is_logged(member, caplog):
    member._on_throttle(ThrottleEvent("broker", 1, 0.01))
    assert troubles(caplog) == []
    member._on_throttle(ThrottleEvent("broker", 1, 7.5))
    (reason,) = troubles(caplog)
    assert reason == "a quota: broker broker delays us by 7.5 s"


class Metadata:
    """The answer of brokers about topics."""

    def __init__(self, topics):
        self.topics = topics

    def list_topics(self, _topic, timeout):
        assert timeout > 0
        return self


class Described:
    def __init__(self, *leaders, error=None):
        self.error = error
        self.partitions = {number: Led(leader) for number, leader in enumerate(leaders)}


class Led:
    replicas = (1, 2)

    def __init__(self, leader):
        self.leader = leader


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ({"t": Described(1, 2)}, ""),
        ({}, "does not exist"),
        ({"t": Described(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))}, "does not exist"),
        ({"t": Described(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))}, "authorization failed"),
        ({"t": Described(1)}, "has no partition 1"),
        ({"t": Described(1, -1)}, "partition 1 of the leader topic 't' has no leader"),
    ],
)
def test_what_is_the_matter_with_the_leader_topic(monkeypatch, topics, words):
    monkeypatch.setattr("harvest_lib.leadership.leader_topic.AdminClient", lambda _: nullcontext(Metadata(topics)))
    said = topic_trouble({}, "t", 2)
    assert words in said
    assert bool(said) is bool(words)
