"""A leader that was thought dead thaws, and goes on where it stood: it changes nothing any more."""

import signal
import sys
import time
import uuid

import psutil
import pytest
from support.native_outbox import NativeOutbox
from support.outbox import check_runs, read_topic, steps
from support.pool import Pool
from support.waiting import eventually

from harvest_lib.delivery import (
    BatchCommitted,
    BatchDeliverySettings,
    BatchFenced,
    CheckpointPlace,
    Topics,
    Transactional,
    TransactionalProducer,
)

pytestmark = pytest.mark.full

SESSION_SECONDS = 3
WATCHED_SECONDS = 5
"""For so long after it thawed a zombie is watched."""
RECORDS = 3_000
MORE = 200


def always():
    return True


# -- two deliveries under one transactional id


class Rivals:
    """Deliveries under the same transactional ids to one topic, with checkpoints in another."""

    def __init__(self, ids, servers, topic, checkpoints):
        self._ids = ids
        self._servers = servers
        self.topic = topic
        self.checkpoints = checkpoints
        self._made = []

    def begun(self):
        kafka = {"bootstrap.servers": self._servers}
        place = CheckpointPlace(topic=self.checkpoints, partition=0, key="default/0")
        settings = BatchDeliverySettings(kafka=kafka, delivery_timeout_seconds=5)
        ids = [f"{self.checkpoints}{each}" for each in self._ids]
        producers = [TransactionalProducer(settings, Topics(kafka), each, place) for each in ids]
        made = Transactional(producers, lambda checkpoint: checkpoint)
        self._made.append(made)
        leader_id = uuid.uuid4()
        assert made.begin(leader_id, lambda: True) == BatchCommitted()
        return made, leader_id

    def send(self, delivery, *ids):
        refused = delivery.send([(number, self.topic, f"k{number}", "v", [], []) for number in ids], always)
        assert refused == {}

    def arrive(self, delivery):
        """Have all that was sent in the log."""
        delivery._producers[0]._producer._client.flush(60)

    def committed(self):
        """Return what readers of committed records see: leader ids and outbox ids, and the checkpoints."""
        records, checkpoints = (
            read_topic(self._servers, topic, isolation="read_committed") for topic in (self.topic, self.checkpoints)
        )
        found = sorted((record.outbox_id, record.leader_id) for record in records)
        return found, [record.value for record in checkpoints]

    def close(self):
        for made in self._made:
            made.abandon()


@pytest.fixture(params=[("",), ("", ".2")], ids=["one_id", "in_turn"])
def rivals(request, bootstrap_servers, make_topic, unique):
    checkpoints = make_topic(1, name=f"{unique('x')}.checkpoint", **{"cleanup.policy": "compact"})
    made = Rivals(request.param, bootstrap_servers, make_topic(4), checkpoints)
    yield made
    made.close()


@pytest.mark.parametrize("sent", ["before", "after", "on_both_sides", "nothing"])
def test_what_the_one_before_commits_is_refused(rivals, sent):
    old, old_id = rivals.begun()
    rivals.send(old, 1)
    assert old.commit(b"1", always) == BatchCommitted()
    if sent in {"before", "on_both_sides"}:
        rivals.send(old, *range(2, 50))
        rivals.arrive(old)
    new, new_id = rivals.begun()
    if sent in {"after", "on_both_sides"}:
        rivals.send(old, *range(50, 100))
    assert isinstance(old.commit(b"old", always), BatchFenced)
    old.abandon()
    rivals.send(new, 2, 3)
    assert new.commit(b"new", always) == BatchCommitted()
    assert rivals.committed() == ([(1, old_id), (2, new_id), (3, new_id)], ["1", "new"])


def test_the_one_before_that_goes_on_sending_hears_that_it_is_over(rivals):
    """librdkafka raises that in whatever call comes next."""
    old, _ = rivals.begun()
    rivals.send(old, *range(1, 50))
    rivals.begun()
    eventually(lambda: rivals.send(old, 50) or old._producers[0]._failures.first is not None, "it is refused")
    assert isinstance(old.commit(b"old", always), BatchFenced)
    old.abandon()
    assert rivals.committed() == ([], [])


def test_what_the_one_before_has_open_holds_up_nobody(rivals):
    """Readers of committed records stop at an open transaction: to begin is to abort it. The one before lets go of it
    without having heard that it is over."""
    old, _ = rivals.begun()
    rivals.send(old, *range(1, 50))
    rivals.arrive(old)
    new, new_id = rivals.begun()
    rivals.send(new, 1)
    old.abandon()
    assert new.commit(b"new", always) == BatchCommitted()
    assert rivals.committed() == ([(1, new_id)], ["new"])


# -- whole harvesters


@pytest.fixture
def outbox(dsn, make_topic, delivery):
    """Without transactions only the broker can refuse what a thawed client sends before anybody can say no."""
    late = {"message.timestamp.before.max.ms": (SESSION_SECONDS - 1) * 1000}
    config = {} if delivery in {"transactional", "sequenced"} else late
    made = NativeOutbox(dsn, make_topic(4, **config))
    yield made
    made.close()


@pytest.fixture
def leadership():
    return "neli"


@pytest.fixture
def pool(tmp_path, outbox, bootstrap_servers, group_id, delivery, leadership):
    made = Pool(
        tmp_path,
        dsn=outbox.dsn,
        servers=bootstrap_servers,
        group=group_id,
        session_seconds=SESSION_SECONDS,
        delivery=delivery,
        leadership=leadership,
    )
    with made:
        yield made


def freeze(pool, step, nth):
    """Start a member that freezes itself at a step, and wait until it has."""
    command = [sys.executable, "-m", "support.striking", "--step", step, "--nth", str(nth), "--signal", "SIGSTOP"]
    member = pool.add(command)
    process = psutil.Process(member.process.pid)
    eventually(lambda: process.status() == psutil.STATUS_STOPPED, f"it froze at {step}")
    return member


def said(member, *events):
    return [event["event"] for event in member.events() if event["event"] in events]


def delivered(servers, outbox):
    return read_topic(servers, outbox.topic, isolation="read_committed")


def arrived(servers, outbox):
    return {record.outbox_id for record in delivered(servers, outbox)} == set(outbox.ids())


def succeed(pool, outbox, servers):
    """Have another member take over and deliver everything; return it with the subscription's row as it then is."""
    successor = pool.add()
    eventually(lambda: successor.leads, "another leads")
    eventually(lambda: arrived(servers, outbox), "all is delivered")

    def settled():
        before = outbox.subscription()
        time.sleep(0.5)  # more than twice as long as a checkpoint may wait
        return before if outbox.subscription() == before else None

    return successor, eventually(settled, "its last checkpoint is saved")


def versions(row):
    """Return what only a leader may change; `leader`, with the partitions of the topics, is renewed on its own."""
    return {column: value for column, value in row.items() if column not in ("version", "leader")}


def watch(zombie, successor):
    """Thaw a member; yield again and again, for a while, until it leads again or its successor does not."""
    zombie.signal(signal.SIGCONT)
    eventually(lambda: said(zombie, "leader_fenced", "leader_revoked"), "it knows that its term is over")
    until = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < until and not zombie.leads and successor.leads:
        yield
        time.sleep(0.05)  # how often it is looked at


@pytest.mark.parametrize("leadership", ["postgres"])
@pytest.mark.parametrize(
    ("delivery", "step", "nth"),
    [
        ("transactional", "leading", 1),
        pytest.param("sequenced", "leading", 1, marks=pytest.mark.long),
        pytest.param("transactional", "commit", 2, marks=pytest.mark.long),
        pytest.param("transactional", "committing", 2, marks=pytest.mark.long),
        pytest.param("sequenced", "keep", 2, marks=pytest.mark.long),
        pytest.param("sequenced", "acknowledge", 6, marks=pytest.mark.long),
    ],
)
def test_one_that_lost_the_lock_in_a_batch_changes_nothing(pool, outbox, bootstrap_servers, step, nth):
    """Nobody waits for it. One that had the lock, and had not raised the epoch, does not raise it when it thaws."""
    check_that_it_changes_nothing(pool, outbox, bootstrap_servers, step, nth)


@pytest.mark.parametrize(
    ("delivery", "step", "nth"),
    [
        ("transactional", "commit", 2),
        pytest.param("transactional", "produce", 1_300, marks=pytest.mark.long),
        pytest.param("transactional", "committing", 2, marks=pytest.mark.long),
        pytest.param("transactional", "committed", 2, marks=pytest.mark.long),
        pytest.param("transactional", "save", 2, marks=pytest.mark.long),
        ("sequenced", "keep", 2),
        pytest.param("sequenced", "produce", 1_300, marks=pytest.mark.long),
        pytest.param("sequenced", "kept", 2, marks=pytest.mark.long),
        pytest.param("sequenced", "acknowledge", 6, marks=pytest.mark.long),
    ],
)
def test_one_that_was_frozen_in_a_batch_changes_nothing(pool, outbox, bootstrap_servers, step, nth):
    check_that_it_changes_nothing(pool, outbox, bootstrap_servers, step, nth)


def check_that_it_changes_nothing(pool, outbox, bootstrap_servers, step, nth):
    outbox.fill(RECORDS, keys=500)
    zombie = freeze(pool, step, nth)
    successor, row = succeed(pool, outbox, bootstrap_servers)
    before = delivered(bootstrap_servers, outbox)
    for _ in watch(zombie, successor):
        assert versions(outbox.subscription()) == versions(row)
        assert delivered(bootstrap_servers, outbox) == before
    outbox.fill(MORE, keys=500)
    eventually(lambda: arrived(bootstrap_servers, outbox), "what came after is delivered")
    found = delivered(bootstrap_servers, outbox)
    assert sorted(record.outbox_id for record in found) == outbox.ids()
    assert steps(found) == []
    assert said(successor, "leader_fenced", "batch_leader_fenced") == []


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["transactional"])
def test_one_that_was_frozen_before_it_began_ends_a_term_at_most(pool, outbox, bootstrap_servers):
    """It had raised the epoch, and was about to fence its predecessor; thawed, it fences its successor. Nothing is lost
    or repeated by that, and somebody leads again."""
    outbox.fill(RECORDS, keys=500)
    zombie = freeze(pool, "begin", 1)
    successor, _ = succeed(pool, outbox, bootstrap_servers)
    zombie.signal(signal.SIGCONT)
    eventually(lambda: said(zombie, "leader_fenced", "leader_revoked"), "it knows that its term is over")
    outbox.fill(MORE, keys=500)
    eventually(lambda: arrived(bootstrap_servers, outbox), "what came after is delivered")
    found = delivered(bootstrap_servers, outbox)
    assert sorted(record.outbox_id for record in found) == outbox.ids()
    assert steps(found) == []
    assert len(said(successor, "leader_fenced")) <= 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("delivery", "step", "nth"), [("pipelined", "produce", 1_300), ("pipelined", "landed", 2), ("barrier", "save", 3)]
)
def test_one_that_was_frozen_without_transactions_repeats_a_run_at_most(pool, outbox, bootstrap_servers, step, nth):
    outbox.fill(RECORDS, keys=500)
    zombie = freeze(pool, step, nth)
    successor, row = succeed(pool, outbox, bootstrap_servers)
    for _ in watch(zombie, successor):
        assert versions(outbox.subscription()) == versions(row)
    outbox.fill(MORE, keys=500)
    eventually(lambda: arrived(bootstrap_servers, outbox), "what came after is delivered")
    check_runs(delivered(bootstrap_servers, outbox))
