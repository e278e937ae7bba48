"""Failover by the lock in Postgres: at once where the delivery fences the old leader, after a wait where not.

The session timeout is far longer than any failover may take here: a standby that waited for it would fail.
"""

import os
import random
import signal
import sys
import threading
import time
from datetime import UTC, datetime

import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from support.arrivals import Arrivals
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config, read_topic, steps
from support.pool import Pool
from support.servers import await_replicated, standby_of
from support.waiting import eventually

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import ServerRegressed
from harvest_lib.events import LeaderAcquired, LeaderFenced
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership.lock_session import LockSession
from harvest_lib.local_stack.postgres import PostgresServer

pytestmark = pytest.mark.full

SESSION_SECONDS = 40
SOON_SECONDS = SESSION_SECONDS / 4
"""A standby that waits for a session timeout takes longer, however busy the machine is."""
FENCED = ("transactional", "sequenced")
TWICE_AND_OFTEN = [
    *((each, 2) for each in FENCED),
    *(pytest.param(each, 20, marks=pytest.mark.long) for each in FENCED),
]
AT_MOST_SECONDS = 1.0
"""From the SIGKILL of a leader to the first record of the next one that readers of committed records see."""
LEADS_AT_MOST_SECONDS = 0.5
"""From there to the term of the next one."""
_WRITE_SECONDS = 0.005
_OFF = """
import sys, time
off, now = float(sys.argv.pop(1)), time.time
time.time = lambda: now() + off
from harvest_lib import cli
cli.main()
"""
CLOCKS = [[sys.executable, "-c", _OFF, seconds, "run"] for seconds in ("1800", "-1800")]
"""`harvest run` on hosts whose wall clocks are an hour apart, one ahead and one behind. librdkafka's own stays true."""

_LOCK = """
SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND application_name = 'harvest leadership'
  AND datname = current_database()
"""


@pytest.fixture
def outbox(dsn, make_topic):
    made = NativeOutbox(dsn, make_topic(4))
    yield made
    made.close()


@pytest.fixture
def written(outbox):
    """Have a record written every few milliseconds, until the test says that it is enough."""
    over = threading.Event()

    def write():
        with psycopg.connect(outbox.dsn, autocommit=True) as connection:
            other = NativeOutbox.__new__(NativeOutbox)
            other.__dict__.update(outbox.__dict__, connection=connection)
            while not over.wait(_WRITE_SECONDS):
                other.fill(2, keys=2)

    writer = threading.Thread(target=write)
    writer.start()

    def enough():
        over.set()
        writer.join()

    yield enough
    enough()


@pytest.fixture
def session_seconds():
    return SESSION_SECONDS


@pytest.fixture
def pool(tmp_path, outbox, bootstrap_servers, group_id, delivery, session_seconds):
    made = Pool(
        tmp_path,
        dsn=outbox.dsn,
        servers=bootstrap_servers,
        group=group_id,
        session_seconds=session_seconds,
        delivery=delivery,
        leadership="postgres",
    )
    with made:
        yield made


def check(outbox, servers, arrivals):
    """Readers of committed records see each record once, and each key in order."""
    ids = outbox.ids()
    eventually(lambda: len(set(arrivals.ids)) == len(ids), "all is delivered")
    found = read_topic(servers, outbox.topic, isolation="read_committed")
    assert sorted(record.outbox_id for record in found) == ids
    assert sorted(arrivals.ids) == ids
    assert steps(found) == []


def leading(pool):
    return eventually(pool.leader, "one leads")


def successor_of(leader, pool, known, arrivals, seconds):
    """Wait until a record of another term comes; return when it did."""

    def came():
        terms = {term for member in pool.members if member is not leader for term in member.terms} - known
        return next((arrivals.first_of[each] for each in terms if each in arrivals.first_of), None)

    return eventually(came, "a record of the next leader comes", seconds=seconds)


def kill_leaders(pool, arrivals, kills, commands=(None, None)):
    """Kill one leader after the other, and start another member for each; return for each kill after how many seconds
    another led, as its log says, and delivered."""
    led, delivered = [], []
    for command in commands:
        pool.add(command)
    for number in range(kills):
        pool.await_started()
        leader = leading(pool)
        eventually(lambda one=leader: set(one.terms) & arrivals.first_of.keys(), "it delivers")
        known = {term for member in pool.members for term in member.terms}
        killed, killed_at = time.monotonic(), datetime.now(UTC)
        leader.signal(signal.SIGKILL)
        delivered.append(successor_of(leader, pool, known, arrivals, SOON_SECONDS) - killed)
        led.append((first_term(pool, known) - killed_at).total_seconds())
        leader.process.wait()
        pool.add(commands[number % len(commands)])
    return led, delivered


def first_term(pool, known):
    """Return when the first term began that is not known yet."""
    began = [
        each for member in pool.members for each in said(member, "leader_acquired") if each["leader_id"] not in known
    ]
    return min(datetime.fromisoformat(each["timestamp"]) for each in began)


@pytest.mark.parametrize(("delivery", "kills"), TWICE_AND_OFTEN)
def test_a_leader_that_is_killed_is_followed_at_once(pool, outbox, written, bootstrap_servers, kills, record_property):
    """Of twenty, each leads within half a second and delivers within one, and nothing comes twice. Of two, on a machine
    that does other things as well, far within the session timeout."""
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        led, took = kill_leaders(pool, arrivals, kills)
        written()
        check(outbox, bootstrap_servers, arrivals)
    record_property("seconds", [round(each, 2) for each in sorted(took)])
    record_property("leads_seconds", [round(each, 2) for each in sorted(led)])
    assert kills < 20 or max(took) <= AT_MOST_SECONDS, sorted(took)
    assert kills < 20 or max(led) <= LEADS_AT_MOST_SECONDS, sorted(led)


@pytest.mark.parametrize("delivery", FENCED)
def test_clocks_that_are_minutes_apart_make_no_difference(pool, outbox, written, bootstrap_servers):
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        kill_leaders(pool, arrivals, 2, CLOCKS)
        written()
        check(outbox, bootstrap_servers, arrivals)


@pytest.mark.parametrize(("delivery", "times"), TWICE_AND_OFTEN)
def test_what_a_frozen_leader_sends_when_it_thaws_is_refused(
    pool, outbox, written, bootstrap_servers, times, record_property
):
    """The server ends its session, and another leads while its own process still believes: it is in the middle of a
    batch, whose records are in the topic and never read."""
    draw = random.Random(times)
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        for _ in range(2):
            pool.add()
        pool.await_started()
        for _ in range(times):
            leader = leading(pool)
            eventually(lambda one=leader: set(one.terms) & arrivals.first_of.keys(), "it delivers")
            time.sleep(draw.uniform(0.0, 0.2))  # where in a batch it freezes is the dice's
            known = {term for member in pool.members for term in member.terms}
            leader.signal(signal.SIGSTOP)
            successor_of(leader, pool, known, arrivals, SOON_SECONDS)
            fenced = sum(event["event"] == "leader_fenced" for event in leader.events())
            leader.signal(signal.SIGCONT)
            eventually(
                lambda one=leader, before=fenced: (
                    sum(event["event"] == "leader_fenced" for event in one.events()) > before
                ),
                "it knows that its term is over",
            )
        written()
        check(outbox, bootstrap_servers, arrivals)
    sent = sum(record.outbox_id is not None for record in read_topic(bootstrap_servers, outbox.topic))
    refused = sent - len(outbox.ids())
    record_property("refused_records", refused)
    assert times < 20 or refused > 0, "no leader was in the middle of a batch: nothing was tried"


@pytest.mark.parametrize(("delivery", "session_seconds"), [("transactional", 3 * SESSION_SECONDS)])
def test_one_that_was_frozen_before_it_began_interrupts_its_successor_for_a_moment(
    pool, outbox, written, bootstrap_servers
):
    """It had raised the epoch, and was about to fence its predecessor in Kafka: thawed, it fences the new leader, and
    once more if its client repeats the request after half a second, as the strike lets it.

    A session timeout is longer than a test's patience: the interrupted leader does not wait for one.
    """
    striking = "-m support.striking --step begin --nth 1 --signal SIGSTOP"
    frozen = pool.add([sys.executable, *striking.split()])
    process = psutil.Process(frozen.process.pid)
    eventually(lambda: process.status() == psutil.STATUS_STOPPED, "it froze")
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        successor = pool.add()
        eventually(lambda: set(successor.terms) & arrivals.first_of.keys(), "another delivers")
        frozen.signal(signal.SIGCONT)
        eventually(lambda: said(successor, "transactional_id_taken"), "it is fenced, and names the producer")
        known = set(arrivals.first_of)
        eventually(lambda: arrivals.first_of.keys() - known, "it goes on")
        written()
        check(outbox, bootstrap_servers, arrivals)
    assert len(said(successor, "leader_fenced")) in {1, 2}


def said(member, event):
    return [each for each in member.events() if each["event"] == event]


def member(outbox, servers, group, delivery, name, seconds=SESSION_SECONDS, dsn=""):
    settings = {"leadership": "postgres", "delivery": delivery, "session_timeout_seconds": seconds, "name": name}
    return Harvest(harvest_config(dsn or outbox.dsn, servers, group, **settings))


def depose(outbox):
    """Have the server end the session that holds the lock, while its holder lives and believes; return which one."""
    (pid,) = eventually(lambda: outbox.connection.execute(_LOCK).fetchone(), "one has the lock")
    outbox.connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])  # and wait until it is gone
    return pid


@pytest.mark.parametrize("delivery", FENCED)
def test_two_that_lead_at_once_deliver_exactly_once(outbox, written, bootstrap_servers, group_id, delivery):
    """The one before is alive, and sends: its session is gone, and it has not asked yet."""
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        members = [member(outbox, bootstrap_servers, group_id, delivery, name) for name in "ab"]
        with members[0], members[1]:
            for _ in range(6):
                count = sum(each.delivered_records for each in members)
                eventually(
                    lambda before=count: sum(each.delivered_records for each in members) > before,
                    "one delivers, though it may have been fenced a moment ago",
                    seconds=SOON_SECONDS,
                )
                terms = {str(each.leader_id) for each in members}
                depose(outbox)
                eventually(
                    lambda before=terms: any(each.is_leader and str(each.leader_id) not in before for each in members),
                    "another term begins",
                    seconds=SOON_SECONDS,
                )
            written()
            check(outbox, bootstrap_servers, arrivals)


@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_without_a_fence_the_next_one_waits(outbox, written, bootstrap_servers, group_id, delivery, monkeypatch):
    taken, try_lock = [], LockSession.try_lock

    def noted(session):
        """The caller that ends a session hears of it later than the standby that waits for its lock."""
        has_it = try_lock(session)
        taken.extend([boot_seconds()] if has_it else [])
        return has_it

    monkeypatch.setattr(LockSession, "try_lock", noted)
    members = [member(outbox, bootstrap_servers, group_id, delivery, name, 4.0) for name in "ab"]
    with members[0], members[1]:
        leader = eventually(lambda: next((each for each in members if each.delivered_records), None), "one leads")
        terms = leader.leader_id
        depose(outbox)
        eventually(lambda: any(each.is_leader and each.leader_id != terms for each in members), "another term begins")
        waited = boot_seconds() - taken[-1]
        assert len(taken) > 1, "one has got it since"
        assert waited >= 4.0
        written()


# -- servers that are wrong about who leads


@pytest.mark.parametrize("delivery", FENCED)
def test_a_lock_that_is_freed_over_and_over_has_somebody_deliver_in_the_end(
    outbox, written, bootstrap_servers, group_id, delivery
):
    """It is freed before its holder has come to its row, or while it begins: several believe that they lead."""
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        members = [member(outbox, bootstrap_servers, group_id, delivery, name) for name in "abc"]
        with members[0], members[1], members[2]:
            freed = {depose(outbox) for _ in range(20)}
            assert len(freed) == 20, "each time another session had it"
            known = set(arrivals.first_of)
            eventually(lambda: arrivals.first_of.keys() - known, "a record of another term comes", seconds=SOON_SECONDS)
            written()
            check(outbox, bootstrap_servers, arrivals)


@pytest.mark.parametrize("delivery", FENCED)
def test_while_a_lock_is_freed_late_nobody_delivers(outbox, written, bootstrap_servers, group_id, delivery):
    """The session's process in the server stands still: it answers nothing, and keeps the lock."""
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals:
        members = [member(outbox, bootstrap_servers, group_id, delivery, name) for name in "ab"]
        with members[0], members[1]:
            eventually(lambda: arrivals.ids, "one delivers")
            (pid,) = eventually(lambda: outbox.connection.execute(_LOCK).fetchone(), "one has the lock")
            os.kill(pid, signal.SIGSTOP)
            try:
                eventually(
                    lambda: not any(each.is_leader for each in members), "its term is over", seconds=SOON_SECONDS
                )
                delivered = sum(each.delivered_records for each in members)
                written_before = outbox.count()
                eventually(lambda: outbox.count() > written_before + 200, "there is much to deliver")
                assert sum(each.delivered_records for each in members) == delivered
            finally:
                os.kill(pid, signal.SIGCONT)
            known = set(arrivals.first_of)
            eventually(lambda: arrivals.first_of.keys() - known, "a record of another term comes", seconds=SOON_SECONDS)
            written()
            check(outbox, bootstrap_servers, arrivals)


def test_a_stranger_that_takes_our_transactional_ids_again_and_again_is_held_off_from(
    outbox, written, bootstrap_servers, group_id, caplog
):
    """Twice we go on; then we hold off for a session timeout, so that two do not fence each other without end. It is
    named each time."""
    seconds = 8.0
    one = member(outbox, bootstrap_servers, group_id, "transactional", "a", seconds)
    heard = []
    one.set_event_handler(lambda event: heard.append((type(event), time.monotonic())))

    def times(kind):
        return [at for each, at in heard if each is kind]

    def take():
        stranger = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"{topic}.0"})
        stranger.init_transactions(10)

    topic = one.config.checkpoint_topic
    with Arrivals(bootstrap_servers, outbox.topic) as arrivals, one:
        for number in (1, 2, 3):
            delivered = one.delivered_records
            eventually(lambda before=delivered: one.delivered_records > before, "it delivers")
            # One taking may fence twice: while Kafka aborts a transaction, the stranger is to come again.
            if len(times(LeaderFenced)) < number:
                take()
            eventually(lambda number=number: len(times(LeaderFenced)) >= number, "it is fenced")
            eventually(lambda number=number: len(times(LeaderAcquired)) > number, "it leads again")
        pauses = zip(times(LeaderFenced)[:3], times(LeaderAcquired)[1:4], strict=True)
        first, second, third = (began - over for over, began in pauses)
        assert max(first, second) < seconds - 0.1 <= third
        written()
        check(outbox, bootstrap_servers, arrivals)
    taken = [each for each in caplog.records if each.getMessage() == "transactional_id_taken"]
    assert len(taken) >= 3
    assert taken[0].levelname == "ERROR"
    assert "does not lead" in taken[0].reason
    assert "checkpointTopic" in taken[0].next_step


def test_of_two_primaries_that_are_alive_one_delivers_and_the_other_ends(
    tmp_path, make_topic, bootstrap_servers, group_id
):
    """Each has the lock of its own server. Kafka decides: the leader at the old one is fenced, and halts at a
    checkpoint that its server knows nothing of. Records that only the old server has are delivered by nobody."""
    primary = PostgresServer(tmp_path / "primary", durable=False)
    primary.start()
    standby, members = None, []
    try:
        old = NativeOutbox(primary.dsn, make_topic(4))
        standby = standby_of(primary, tmp_path / "standby")
        members = [
            member(old, bootstrap_servers, group_id, "transactional", name, 4.0, server.dsn)
            for name, server in (("old", primary), ("new", standby))
        ]
        with Arrivals(bootstrap_servers, old.topic) as arrivals:
            members[0].start()
            old.fill(20)
            both = old.ids()
            eventually(lambda: len(arrivals.ids) == 20, "the first are delivered")
            eventually(lambda: (old.subscription()["checkpoint"] or {}).get("delivered") == 20, "and mirrored")
            await_replicated(primary, standby)
            standby.promote()
            new = NativeOutbox(standby.dsn, old.topic)
            new.fill(20)
            members[1].start()
            eventually(lambda: len(arrivals.ids) == 40, "the new one is led at once, and delivered from")
            old.fill(20)
            with pytest.raises(ServerRegressed):
                eventually(lambda: members[0].await_stopped(0.1), "the other one halts")
            new.fill(20)
            eventually(lambda: len(arrivals.ids) == 60, "the new one is delivered from")
            assert sorted(arrivals.ids) == new.ids()
            assert set(both) < set(new.ids())
            assert [members[0].delivered_records, members[1].delivered_records] == [20, 40]
            new.close()
        old.close()
    finally:
        for each in members:
            each.stop()
        for server in (primary, standby):
            if server is not None:
                server.kill()
