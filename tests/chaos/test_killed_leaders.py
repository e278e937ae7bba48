"""A pool of processes whose leaders are killed and frozen at random while writers write: nothing lost, no step back.

The leader, the time and the way are drawn from a seed that a failing run prints.
"""

import random
import signal
import time
from contextlib import suppress

import psycopg
import pytest
from support.outbox import Outbox, read_topic, steps, steps_back
from support.pool import Pool
from support.waiting import eventually
from support.writers import Writers

pytestmark = pytest.mark.full

SESSION_SECONDS = 3


@pytest.fixture
def outbox(dsn, make_topic):
    """An outbox whose topic refuses records that are older than a leader may be without being followed.

    A frozen leader may have a request ready that its client sends when it thaws, before we can say no: only the broker
    can refuse that one.
    """
    topic = make_topic(partitions=4, **{"message.timestamp.before.max.ms": (SESSION_SECONDS - 1) * 1000})
    made = Outbox(dsn, topic)
    yield made
    made.close()


@pytest.fixture
def pool(tmp_path, outbox, bootstrap_servers, group_id):
    made = Pool(tmp_path, dsn=outbox.dsn, servers=bootstrap_servers, group=group_id, session_seconds=SESSION_SECONDS)
    with made:
        yield made


def check(outbox, bootstrap_servers, committed):
    """Every committed version of every key is there, in order; a version may repeat, under another leader only."""
    delivered = read_topic(bootstrap_servers, outbox.topic)
    first, leaders = {}, {}
    for record in delivered:
        version = int(record.value)
        if version > first.get(record.key, 0):
            assert version == first.get(record.key, 0) + 1, f"{record.key}: {version} skips"
            first[record.key] = version
        leaders.setdefault(record.outbox_id, []).append(record.leader_id)
    assert first == {key: version for key, version in committed.items() if version}
    assert steps(delivered) == []
    assert all(len(ids) == len(set(ids)) for ids in leaders.values()), "an unexplained duplicate"


def harass(pool, outbox, *, leaders, seed):
    """Take `leaders` leaders away, by kill or by freeze past the session timeout; wait for each one's successor."""
    draw = random.Random(seed)
    frozen = []
    for turn in range(leaders):
        pool.await_started()  # one that joins now would move the leadership under our hands
        pause = draw.uniform(0.2, 1.0)
        leader = None
        while leader is None or not leader.leads:  # it may have moved to one that joined
            leader = eventually(pool.leader, "somebody leads")
            time.sleep(pause)  # when it strikes is the dice's, not luck's
        how = signal.SIGKILL if (turn + seed) % 2 else signal.SIGSTOP
        known = {term for member in pool.members for term in member.terms}
        leader.signal(how)
        others = [member for member in pool.members if member is not leader and member not in frozen]
        eventually(lambda known=known, others=others: any(set(m.terms) - known for m in others), "a successor")
        if how is signal.SIGSTOP:
            frozen.append(leader)
            time.sleep(1)  # beyond the session timeout, as the successor shows: how far is not what is judged
            leader.signal(signal.SIGCONT)
            frozen.remove(leader)
            # Until it has heard that it was fenced, it says that it leads: the next strike would be at nobody.
            eventually(
                lambda leader=leader, known=known: not leader.leads or set(leader.terms) - known, "it hears of it"
            )
        else:
            leader.process.wait()
            pool.add()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_leaders_are_killed_and_frozen(pool, outbox, bootstrap_servers, seed):
    for _ in range(3):
        pool.add()
    pool.await_started()
    with Writers(outbox) as writers:
        harass(pool, outbox, leaders=4 if seed == 1 else 12, seed=seed)
    eventually(lambda: outbox.count() == 0, "the backlog is empty")
    pool.await_started()
    assert [member.end() for member in pool.members if member.alive] == [0] * 3
    assert outbox.leaders() == set()
    check(outbox, bootstrap_servers, writers.committed())


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox SET leader_id = NULL WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 20)",
        "UPDATE outbox SET leader_id = gen_random_uuid() WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 200)",
    ],
    ids=["unmarks", "takes"],
)
def test_a_deposed_leader_that_unmarks_or_takes_our_rows_changes_nothing(pool, outbox, bootstrap_servers, statement):
    """goharvest resets by id alone, so one that was fenced unmarks rows that are in flight here; they come again."""
    member = pool.add()
    touched = 0
    with Writers(outbox) as writers:
        eventually(lambda: member.leads, "it leads")
        while touched < 200:
            with suppress(psycopg.errors.DeadlockDetected):  # with the leader's own mark or purge: it strikes again
                touched += outbox.connection.execute(statement).rowcount
            time.sleep(0.02)  # the pace at which it strikes
    eventually(lambda: outbox.count() == 0, "the backlog is empty")
    check(outbox, bootstrap_servers, writers.committed())


def test_a_clean_hand_over_repeats_nothing(pool, outbox, bootstrap_servers):
    """SIGTERM under load: the leader lets its records land, the next one goes on, and no record is sent twice."""
    first, second = pool.add(), pool.add()
    outbox.fill(20_000, keys=500)
    leader = eventually(pool.leader, "somebody leads")
    eventually(lambda: outbox.count() < 19_000, "it works")
    assert leader.end() == 0
    other = second if leader is first else first
    eventually(lambda: other.leads, "the other leads")
    eventually(lambda: outbox.count() == 0, "the backlog is empty")
    delivered = read_topic(bootstrap_servers, outbox.topic)
    assert [record.outbox_id for record in sorted(delivered, key=lambda r: r.outbox_id)] == list(range(1, 20_001))
    assert steps_back(delivered) == 0
