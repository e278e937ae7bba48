"""goharvest and ours in one pool: one group, one leader topic, one table. Leaders die, both kinds follow each other.

goharvest puts nothing of its own on a record, so order is judged by value: a record's value is its key's version.
"""

import random
import signal
import time
from collections import Counter
from datetime import datetime

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.goharvest import Goharvest, MixedPool
from support.goharvest_build import Unavailable, reaper
from support.outbox import Outbox, read_topic
from support.waiting import eventually
from support.writers import Writers

from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import default_state

pytestmark = [
    pytest.mark.full,
    pytest.mark.long,
    pytest.mark.timeout(900),  # builds goharvest and brings the older Kafka at the first time
]

SUCCESSION_SECONDS = 60
"""goharvest's session is three of its heartbeat timeouts, 4.5 s here; the rest is a busy machine's."""


@pytest.fixture(scope="session")
def program():
    try:
        return reaper(default_state())
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def servers(program, tmp_path, parts):
    """Postgres 16 and Kafka 3.9.1: on 4.x goharvest's client never hears its own heartbeats."""
    with Stack(tmp_path / "stack", postgres="16", kafka="3.9.1", parts=parts) as stack:
        yield stack


@pytest.fixture
def outbox(servers, group_id, request):
    """An outbox and a topic, plain unless a test gives it settings; the leader topic, because goharvest makes none."""
    orders = NewTopic("orders", 4, config=getattr(request, "param", {}))
    admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers})
    for made in admin.create_topics([orders, NewTopic(f"{group_id}.neli", 1)]).values():
        made.result(60)
    made = Outbox(servers.dsn, "orders")
    yield made
    made.close()


@pytest.fixture
def pool(program, servers, outbox, group_id, tmp_path):
    made = MixedPool(tmp_path, program=program, dsn=servers.dsn, servers=servers.bootstrap_servers, group=group_id)
    with made:
        yield made


def kind(member):
    return "goharvest" if isinstance(member, Goharvest) else "ours"


def await_leader(pool):
    """Wait until the living member of the lowest rank leads, and nobody else says so."""

    def leader():
        leading = [member for member in pool.members if member.leads]
        lowest = min((member for member in pool.members if member.alive), key=lambda member: member.rank)
        return lowest if leading == [lowest] else None

    return eventually(leader, "one leads")


def harass(pool, *, seconds, seed):
    """Kill the leader, and start one of its kind again, for so long; return the kills, and the changes of leadership.

    Ranks decide: the killed one comes back last, so that kinds alternate, or by turns first, and then takes the lead
    from a living leader of the other kind.
    """
    draw = random.Random(seed)
    until = time.monotonic() + seconds
    passed, kills = Counter(), Counter()
    while time.monotonic() < until:
        pool.await_started()
        leader = await_leader(pool)
        time.sleep(draw.uniform(0.2, 1.5))  # when it strikes is the dice's, not luck's
        leader.signal(signal.SIGKILL)
        leader.process.wait()
        kills[kind(leader)] += 1
        follower = await_leader(pool)
        passed[kind(leader), kind(follower), "killed"] += 1
        again = pool.add_goharvest if kind(leader) == "goharvest" else pool.add_ours
        ranks = [member.rank for member in pool.members]
        if kills[kind(leader)] % 3:
            again(max(ranks) + 1)
            continue
        newcomer = again(min(ranks) - 1)
        assert await_leader(pool) is newcomer
        passed[kind(follower), kind(newcomer), "relieved"] += 1
    return kills, passed


def terms(pool):
    """Return when each term of each member began, as early and as late as its log allows."""
    spans = []
    for member in pool.members:
        for event in member.events():
            if event["event"] in {"leader_acquired", "leader_refreshed"}:
                began = datetime.fromisoformat(event["timestamp"]).timestamp()
                spans.append((began, began + 1.0))
    return spans


def check(pool, delivered, committed):
    """Of each key the log holds every version, in order, each followed by itself or by the next; return the repeats.

    A repeat is explained when a term began after the first was sent and before the second was; ours says by its header
    that two copies are not of one term.
    """
    began = terms(pool)
    last, repeats = {}, 0
    for record in delivered:
        version, before = int(record.value), last.get(record.key)
        expected = int(before.value) if before else 0
        assert version in ({expected, expected + 1} if before else {1}), f"{record.key}: {version} after {expected}"
        if version == expected:
            repeats += 1
            assert record.leader_id is None or record.leader_id != before.leader_id, "one term sent it twice"
            assert any(before.sent_at <= late and early <= record.sent_at for early, late in began), "no term began"
        last[record.key] = record
    assert {key: int(record.value) for key, record in last.items()} == {k: v for k, v in committed.items() if v}
    return repeats


def settle(pool, outbox, servers, writers):
    """Wait for the backlog to empty, and check the delivered records; return them by harvester, and the repeats."""
    eventually(lambda: outbox.count() == 0, "the backlog is empty", seconds=120)
    delivered = read_topic(servers.bootstrap_servers, outbox.topic)
    repeats = check(pool, delivered, writers.committed())
    return Counter("goharvest" if record.leader_id is None else "ours" for record in delivered), repeats


@pytest.mark.parametrize("seconds", [180])
def test_leaders_of_both_kinds_are_killed(pool, outbox, servers, seconds, capsys):
    pool.add_goharvest(501)
    pool.add_ours(502)
    pool.add_goharvest(503)
    pool.add_ours(504)
    with Writers(outbox, pause_seconds=0.02) as writers:
        kills, passed = harass(pool, seconds=seconds, seed=1)
    senders, repeats = settle(pool, outbox, servers, writers)
    with capsys.disabled():
        print(f"\nkills {dict(kills)}, passed {dict(passed)}, delivered {dict(senders)}, repeats {repeats}")  # noqa: T201 - figures to quote
    for giver, taker in (("goharvest", "ours"), ("ours", "goharvest")):
        assert passed[giver, taker, "killed"]
        assert passed[giver, taker, "relieved"]
        assert senders[giver]


@pytest.mark.parametrize("outbox", [{"message.timestamp.before.max.ms": "2000"}], indirect=True)
def test_ours_is_frozen_and_goharvest_leads_meanwhile(pool, outbox, servers):
    """Thawed, it sends nothing that the broker takes, and nothing is lost.

    The order of goharvest meanwhile is not checked: a mark that was on its way when we were frozen takes rows that
    goharvest has in flight, and goharvest then sends them again, behind their successors even.
    """
    ours, other = pool.add_ours(501), pool.add_goharvest(502)
    draw = random.Random(1)
    with Writers(outbox) as writers:
        for _ in range(5):
            pool.await_started()
            eventually(lambda: ours.leads and not other.leads, "ours leads")
            time.sleep(draw.uniform(0.2, 1.5))  # when it strikes is the dice's, not luck's
            terms_before = len(other.terms)
            ours.signal(signal.SIGSTOP)
            eventually(
                lambda before=terms_before: len(other.terms) > before, "goharvest leads", seconds=SUCCESSION_SECONDS
            )
            ours.signal(signal.SIGCONT)
    eventually(lambda: outbox.count() == 0, "the backlog is empty", seconds=120)
    highest, seen = {}, Counter()
    for record in read_topic(servers.bootstrap_servers, outbox.topic):
        version, before = int(record.value), highest.get(record.key, 0)
        assert version <= before + 1, f"{record.key}: {version} skips"
        if record.leader_id is not None:
            assert version >= before, f"{record.key}: ours sent {version} after {before}"
        highest[record.key] = max(version, before)
        seen["goharvest" if record.leader_id is None else "ours"] += 1
    assert highest == {key: version for key, version in writers.committed().items() if version}
    assert seen["goharvest"]
    assert seen["ours"]
