"""Leadership by a lock in a real Postgres: one leader at a time, handed over at once, and none that cannot prove it."""

import os
import signal
import threading
from collections import Counter

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo
from support.databases import Databases
from support.outbox import harvest_config, read_topic
from support.waiting import eventually
from support.watch import Watch

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import DatabaseError, DatabaseUnavailable
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership import PostgresLeadership, TermEnd, lock_holder
from harvest_lib.leadership.lock_session import LockSession
from harvest_lib.leadership.postgres import PostgresLeadershipSettings
from harvest_lib.postgres.database import connect

pytestmark = pytest.mark.full

HEARTBEAT = 1.0
SESSION = 1.5

_LOCK_HOLDER = """
SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND application_name = 'harvest leadership'
  AND datname = current_database()
"""


@pytest.fixture(scope="module")
def stack(breakable_stack):
    """Servers that a test may kill or freeze."""
    return breakable_stack


@pytest.fixture(scope="module")
def databases(stack):
    return Databases(lambda: stack.dsn)


@pytest.fixture(scope="module")
def bootstrap_servers(stack):
    return stack.bootstrap_servers


@pytest.fixture(scope="module")
def admin(bootstrap_servers):
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def pool(dsn, group_id):
    """Make members of one pool; all are stopped at the end."""
    members = []

    def join(conninfo=dsn, clock=boot_seconds, **settings):
        chosen = {
            "group": group_id,
            "heartbeat_timeout_seconds": HEARTBEAT,
            "session_timeout_seconds": SESSION,
            "quiesce_timeout_seconds": 0.0,
            "io_error_backoff_seconds": 0.1,
            **settings,
        }
        member = PostgresLeadership(PostgresLeadershipSettings(**chosen), conninfo, clock)
        member.start()
        members.append(member)
        return member

    yield join
    for member in members:
        member.stop(60)


@pytest.fixture
def asking(dsn):
    """The test's own connection; it does not survive the server."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def leaders(members):
    return [member for member in members if member.term(0) is not None]


def one_that_leads(members):
    return eventually(lambda: next(iter(leaders(members)), None), "one leads")


def holder(asking):
    """Return the process id of the backend whose session has the lock."""
    return eventually(lambda: asking.execute(_LOCK_HOLDER).fetchone(), "one has the lock")[0]


def test_one_of_several_leads_and_keeps_on_leading(pool):
    started = boot_seconds()
    members = [pool() for _ in range(3)]
    with Watch(*members) as watch:
        one_that_leads(members)
        assert boot_seconds() - started >= SESSION, "it cannot know that nobody was there"

        def keeps_on():
            terms = [term for member in leaders(members) if (term := member.term(0)) is not None]
            began = [watch.began.get(term.leader_id) for term in terms if term.is_live()]
            return any(each and boot_seconds() - each > 1.5 * HEARTBEAT for each in began)

        eventually(keeps_on, "one leads for longer than the heartbeat timeout")


def test_a_leader_that_leaves_is_followed_without_waiting_for_the_session_timeout(pool):
    """The session timeout is longer than this test may wait."""
    first = pool()
    term = first.term(60)
    second, third = (pool(session_timeout_seconds=120.0) for _ in range(2))
    with Watch(first, second, third):
        first.stop(60)
        assert term.ended is TermEnd.REVOKED
        following = one_that_leads([second, third]).term(0)
        assert following.leader_id != term.leader_id
        next(iter(leaders([second, third]))).stop(60)
        one_that_leads([second, third])


def test_a_stop_waits_for_what_is_in_flight(pool):
    """The successor must not begin while the one before still has records on the wire."""
    first = pool(quiesce_timeout_seconds=300.0)
    term = first.term(60)
    term.quiesced.clear()  # as the harvester does when it begins to act
    second = pool()
    stopper = threading.Thread(target=first.stop, args=(60,))
    stopper.start()
    eventually(lambda: term.ended is TermEnd.REVOKED, "reported in time")
    assert second.term(HEARTBEAT + 0.5) is None, "the server does not take a session for frozen that waits"
    assert stopper.is_alive()
    term.quiesced.set()
    stopper.join(60)
    assert second.term(60) is not None


def test_a_lost_session_fences_and_nobody_leads_before_its_lease_is_over(pool, asking):
    """The server frees the lock at once, while its holder still believes."""
    members = [pool(), pool()]
    with Watch(*members) as watch:
        first = one_that_leads(members).term(0)
        lost = boot_seconds()
        asking.execute("SELECT pg_terminate_backend(%s)", [holder(asking)])
        eventually(lambda: first.ended is TermEnd.FENCED, "fenced")
        second = one_that_leads(members).term(0)
        began = boot_seconds()
        assert second.leader_id != first.leader_id
        assert began - lost >= SESSION
        assert watch.in_turn(first, second)


def test_a_frozen_postgres_fences_its_leader_and_one_leads_when_it_thaws(pool, asking, stack):
    """Both the server's front door and every session of the pool stand still."""
    members = [pool(), pool()]
    with Watch(*members) as watch:
        first = one_that_leads(members).term(0)
        backends = [
            pid
            for (pid,) in asking.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'harvest leadership'"
            )
        ]
        assert len(backends) == 2
        stack.postgres.suspend()
        try:
            for pid in backends:
                os.kill(pid, signal.SIGSTOP)
            eventually(lambda: first.ended is TermEnd.FENCED, "fenced")
            assert not leaders(members)
        finally:
            for pid in backends:
                os.kill(pid, signal.SIGCONT)
            stack.postgres.resume()
        second = one_that_leads(members).term(0)
        assert second.leader_id != first.leader_id
        assert watch.in_turn(first, second)


def test_a_postgres_that_crashed_and_came_back_has_one_leader_again(pool, stack):
    members = [pool(), pool()]
    with Watch(*members) as watch:
        first = one_that_leads(members).term(0)
        stack.postgres.kill()
        killed = boot_seconds()
        eventually(lambda: first.ended is TermEnd.FENCED, "fenced")
        stack.postgres.start()
        second = one_that_leads(members).term(0)
        assert boot_seconds() - killed >= SESSION
        assert second.leader_id != first.leader_id
        assert watch.in_turn(first, second)


def test_postgres_away_while_stopping_does_not_keep_a_member(pool, stack):
    member = pool()
    term = member.term(60)
    stack.postgres.kill()
    thread = member._thread
    member.stop(60)
    assert not thread.is_alive()
    assert not term.is_live()


def test_a_session_that_says_nothing_is_ended_by_the_server(dsn, group_id):
    """Its process is frozen, or cut off: another may have the lock."""
    silent = LockSession(dsn, group_id, idle_timeout_seconds=HEARTBEAT)
    other = LockSession(dsn, group_id, idle_timeout_seconds=60.0)
    try:
        said = boot_seconds()
        assert silent.try_lock()
        assert not other.try_lock()
        eventually(other.try_lock, "the lock is free")
        assert boot_seconds() - said >= HEARTBEAT
        with pytest.raises(DatabaseUnavailable):
            silent.look()
    finally:
        silent.close()
        other.close()


def test_the_word_of_who_leaves_is_seen_by_all_and_ends_by_itself(dsn, stack, group_id):
    """By all of this database: the lock of another is not the one that was let go."""
    leaver, other, elsewhere = (LockSession(at, group_id, idle_timeout_seconds=60.0) for at in (dsn, dsn, stack.dsn))
    assert leaver.try_lock()
    assert leaver.look().held
    assert not other.look().held
    speaker = threading.Thread(target=leaver.leave, args=(2.0,))
    speaker.start()
    try:
        eventually(other.try_lock, "the lock is free while the word stands")
        sight = other.look()
        assert sight.held
        assert sight.left_in_order
        assert not elsewhere.look().left_in_order
        assert speaker.is_alive(), "the word stood while we looked"
        speaker.join()
        assert not other.look().left_in_order
        assert not leaver.look().held
    finally:
        speaker.join()  # a connection is no other thread's to close
        leaver.close()
        other.close()
        elsewhere.close()


@pytest.mark.parametrize("change", [{"port": 1}, {"dbname": "not_there"}, {"password": "not this one"}])
def test_who_cannot_connect_hears_of_it_at_the_start(pool, dsn, change):
    with pytest.raises(DatabaseError):
        pool(make_conninfo(dsn, **change))


def test_each_group_and_each_database_has_a_leader_of_its_own(pool, dsn, stack, group_id):
    """Advisory locks are a database's own: a pool has to use one, and several pools may share it."""
    members = [pool(), pool(group=f"{group_id}-2"), pool(stack.dsn)]
    eventually(lambda: len(leaders(members)) == 3, "each leads")


def test_a_role_without_any_privilege_can_lead(pool, dsn, asking, unique):
    role = unique("role")
    asking.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        member = pool(make_conninfo(dsn, user=role, password="secret"))
        assert member.term(60) is not None
        member.stop(60)
    finally:
        eventually(lambda: not asking.execute(_LOCK_HOLDER).fetchone())
        asking.execute(f"DROP ROLE {role}")


class Counting:
    """A connection that counts what it is asked, under the name of the member whose thread asks."""

    def __init__(self, connection, asked):
        self._connection = connection
        self._asked = asked

    def execute(self, *arguments):
        self._asked[threading.get_ident()] += 1
        return self._connection.execute(*arguments)

    def close(self):
        self._connection.close()


def test_a_standby_and_a_leader_ask_little(pool, monkeypatch):
    """The default times, but for the first wait. Both are bounded by the clock: a busy machine asks less."""
    asked = Counter()
    monkeypatch.setattr(
        "harvest_lib.leadership.lock_session.connect", lambda conninfo: Counting(connect(conninfo), asked)
    )
    leader = pool(heartbeat_timeout_seconds=5.0, session_timeout_seconds=0.2)
    assert leader.term(60) is not None
    standby = pool(heartbeat_timeout_seconds=5.0)
    threads = {"leader": leader._thread.ident, "standby": standby._thread.ident}
    eventually(lambda: asked[threads["standby"]] >= 2, "it stands by")
    before, began = asked.copy(), boot_seconds()
    eventually(lambda: asked[threads["standby"]] >= before[threads["standby"]] + 20, "two seconds or more")
    seconds = boot_seconds() - began
    assert asked[threads["standby"]] - before[threads["standby"]] <= 10 * seconds + 1
    assert asked[threads["leader"]] - before[threads["leader"]] <= 2 * seconds + 1
    assert asked[threads["leader"]] > before[threads["leader"]]


def test_harvesters_elect_by_the_lock_and_hand_over_without_a_loss_or_a_repeat(outbox, bootstrap_servers, group_id):
    records = 3_000
    outbox.fill(records, keys=100)

    def member():
        # Long enough for a record to be acknowledged on a busy machine.
        limits = {"heartbeat_timeout_seconds": 5.0}
        return Harvest(
            harvest_config(
                outbox.dsn,
                bootstrap_servers,
                group_id,
                leadership="postgres",
                session_timeout_seconds=10.0,
                limits=limits,
            )
        )

    with member() as first:
        eventually(lambda: first.is_leader, "the first leads")
        with member() as second:
            eventually(lambda: first.delivered_records > 200, "busy")
            assert not second.is_leader
            assert lock_holder(outbox.connection, group_id, "outbox").startswith("backend "), (
                "which `harvest status` shows"
            )
            first.stop()
            assert first.await_stopped(60)
            outbox.fill(100, keys=100)  # a fast first has delivered all before
            eventually(lambda: second.is_leader, "the second leads")
            eventually(lambda: outbox.count() == 0, "the backlog is empty")
            assert second.delivered_records >= 100
    assert lock_holder(outbox.connection, group_id, "outbox") is None
    delivered = read_topic(bootstrap_servers, outbox.topic)
    assert sorted(record.outbox_id for record in delivered) == list(range(1, records + 100 + 1))
    assert len({record.leader_id for record in delivered}) == 2
