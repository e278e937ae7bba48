"""NELI over several shards on a real broker: shared evenly, each led by one at a time, handed over and fenced alone."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from support.waiting import eventually
from support.watch import Watch

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import TopicMissing, TopicTooSmall
from harvest_lib.leadership import TermEnd

pytestmark = pytest.mark.full

HEARTBEAT = 1.5
SESSION = 3.0
TESTS = Path(__file__).parents[2]


def shards_of(member):
    return [term.shard for term in member.terms(0)]


def shared(members, shards):
    """Return True if the members lead all shards, each one of them as many as any other, give or take one."""
    shares = [shards_of(member) for member in members]
    sizes = [len(share) for share in shares]
    return sorted(chain(*shares)) == list(range(shards)) and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("shards", "partitions"), [(2, 2), (5, 5), (2, 9)])
def test_a_pool_shares_the_shards_evenly_and_again_when_one_joins_or_leaves(
    join, make_topic, group_id, shards, partitions
):
    make_topic(partitions=partitions, name=f"{group_id}.neli")
    first, second = join(shards), join(shards)
    with Watch(first, second) as watch:
        eventually(lambda: shared([first, second], shards), "two share")
        third = join(shards)
        watch.members.append(third)
        eventually(lambda: shared([first, second, third], shards), "three share")
        third.stop(60)
        eventually(lambda: shared([first, second], shards), "two share again")


@pytest.mark.parametrize("shards", [1, 2])
def test_a_member_that_leaves_is_followed_without_waiting_for_the_session(join, shards):
    """It is longer than this test may wait."""
    members = [join(shards, session_timeout_seconds=120.0) for _ in range(2)]
    eventually(lambda: shared(members, shards), "they share")
    first = next(member for member in members if member.terms(0))
    (other,) = (member for member in members if member is not first)
    before = first.terms(0)
    with Watch(*members):
        first.stop(60)
        assert {term.ended for term in before} == {TermEnd.REVOKED}
        eventually(lambda: shards_of(other) == list(range(shards)), "the one that is left leads all")
    assert {term.leader_id for term in other.terms(0)}.isdisjoint(term.leader_id for term in before)


def test_a_shard_that_stays_where_it_is_is_revoked_with_the_others(join):
    """Their former proofs are void."""
    one = join(3)
    before = eventually(lambda: len(terms := one.terms(1)) == 3 and terms, "it leads all")
    other = join(3)
    eventually(lambda: any(term.ended for term in before), "a rebalance begins")
    assert {term.ended for term in before} == {TermEnd.REVOKED}, "together"
    eventually(lambda: shared([one, other], 3), "two share")
    now = {term.leader_id for member in (one, other) for term in member.terms(0)}
    assert now.isdisjoint(term.leader_id for term in before), "an id is never used again"


def test_a_rebalance_waits_until_every_term_is_quiet(join):
    first = join(2, quiesce_timeout_seconds=300.0)
    terms = eventually(lambda: len(terms := first.terms(1)) == 2 and terms, "it leads both")
    for term in terms:
        term.quiesced.clear()  # as the harvester does when it begins to act
    second = join(2)
    eventually(lambda: all(term.ended is TermEnd.REVOKED for term in terms), "reported in time")
    terms[0].quiesced.set()
    assert second.terms(1.0) == ()
    terms[1].quiesced.set()
    eventually(lambda: shared([first, second], 2), "two share")


def test_after_a_kill_the_others_lead_all(join, bootstrap_servers, group_id):
    member = join(4)
    arguments = [bootstrap_servers, group_id, "4", str(HEARTBEAT), str(SESSION)]
    command = [sys.executable, "-m", "support.neli_member", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS.parent, env=environment)
    try:
        said = (json.loads(line) for line in process.stdout)
        assert len(next(share for share in said if share)) == 2
        eventually(lambda: len(shards_of(member)) == 2, "two share")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    eventually(lambda: shards_of(member) == [0, 1, 2, 3], "the one that is left leads all")


def test_a_shard_whose_heartbeat_is_not_heard_is_fenced_alone(join, monkeypatch):
    member = join(2)
    deaf, well = eventually(lambda: len(terms := member.terms(1)) == 2 and terms, "it leads both")
    send = member._send_heartbeat
    monkeypatch.setattr(
        member, "_send_heartbeat", lambda producer, candidacy, now: candidacy.shard and send(producer, candidacy, now)
    )
    eventually(lambda: deaf.ended, "its heartbeat is not heard")
    assert deaf.ended is TermEnd.FENCED
    fenced = boot_seconds()
    eventually(lambda: boot_seconds() - fenced > HEARTBEAT)
    assert member.terms(0) == (well,)
    monkeypatch.undo()
    again = eventually(lambda: len(terms := member.terms(1)) == 2 and terms, "it leads both again")
    assert again[0].leader_id != deaf.leader_id
    assert again[1] is well


def test_the_leader_topic_is_made_with_a_partition_for_each_shard(join, admin, group_id):
    join(3)
    found = eventually(lambda: admin.list_topics(timeout=60).topics.get(f"{group_id}.neli"), "brokers know it")
    assert len(found.partitions) == 3


def test_a_leader_topic_that_is_too_small_is_refused_with_the_command_that_mends_it(join, make_topic, group_id):
    topic = make_topic(partitions=2, name=f"{group_id}.neli")
    with pytest.raises(TopicTooSmall) as caught:
        join(3)
    assert topic in caught.value.cause
    assert caught.value.evidence == "2, of 3"
    assert f"--alter --topic {topic} --partitions 3" in caught.value.next_step


def test_a_leader_topic_that_may_not_be_made_is_asked_for_with_a_partition_for_each_shard(join):
    with pytest.raises(TopicMissing, match="--partitions 3"):
        join(3, create_topic=False)
