"""Ways of reading an outbox: interleavings that tell them apart one by one, and the workload that has them all."""

import time
from contextlib import ExitStack

import psycopg
import pytest
from support.waiting import eventually

from tests.benchmarks.approaches import scenario, tables
from tests.benchmarks.approaches.gaps import GapDetection
from tests.benchmarks.approaches.grace import GracePeriod
from tests.benchmarks.approaches.judge import Poll, judge
from tests.benchmarks.approaches.position import PositionOnly, PositionUnderXmin
from tests.benchmarks.approaches.race import race
from tests.benchmarks.approaches.scenario import READERS, measure
from tests.benchmarks.approaches.snapshot import Snapshot
from tests.benchmarks.approaches.transaction_id import TransactionIdAndPosition
from tests.benchmarks.backlog import Servers

pytestmark = pytest.mark.full

PATIENCE = 0.05


class Script:
    """Writers that a test drives, line by line, and one reader."""

    def __init__(self, dsn, held):
        tables.create(dsn)
        self._connect = lambda: held.enter_context(psycopg.connect(dsn))
        self._connection = self._connect()
        self._connection.autocommit = True
        self.committed, self._polls = {}, []

    def writer(self):
        """Begin a transaction that has its id."""
        connection = self._connect()
        connection.execute("SELECT pg_current_xact_id()")
        return connection

    def write(self, connection, key, number):
        connection.execute("INSERT INTO approaches.outbox (kafka_key, number) VALUES (%s, %s)", (key, number))
        connection.execute("INSERT INTO approaches.marked (kafka_key, number) VALUES (%s, %s)", (key, number))
        self.committed[key, number] = time.monotonic()  # as all are in the end

    def read(self, reader):
        """Poll until the record expected has come, whatever other databases of the server hold open meanwhile."""

        def until(*wanted):
            eventually(lambda: set(wanted) <= set(self._poll(reader)), f"{wanted} is read")

        return until

    def _poll(self, reader):
        records = [(row[1], row[2]) for row in reader.poll(self._connection)]
        self._polls.append(Poll(time.monotonic(), time.monotonic(), records))
        return [record for poll in self._polls for record in poll.records]

    def verdict(self):
        return judge(self.committed, self._polls)


@pytest.fixture
def script(dsn):
    with ExitStack() as held:
        yield Script(dsn, held)


def late_commit(script, reader):
    """A takes the lower id, B the higher; B commits, and is read; then A commits, and C after it."""
    read, a, b = script.read(reader), script.writer(), script.writer()
    script.write(a, "a", 1)
    script.write(b, "b", 1)
    b.commit()
    if not isinstance(reader, PositionUnderXmin | TransactionIdAndPosition):  # they wait for A
        read(("b", 1))
    a.commit()
    c = script.writer()
    script.write(c, "c", 1)
    c.commit()
    read(("b", 1), ("c", 1))
    return script.verdict()


def late_id(script, reader):
    """A begins first; B takes the lower id; A commits the higher one, and is read; then B commits, and C after it."""
    read, a, b = script.read(reader), script.writer(), script.writer()
    script.write(b, "b", 1)
    script.write(a, "a", 1)
    a.commit()
    read(("a", 1))
    b.commit()
    c = script.writer()
    script.write(c, "c", 1)
    c.commit()
    read(("a", 1), ("c", 1))
    return script.verdict()


def late_lock(script, reader):
    """A begins first; B locks the key, writes and commits; then A does."""
    read, a, b = script.read(reader), script.writer(), script.writer()
    script.write(b, "k", 1)
    b.commit()
    script.write(a, "k", 2)
    a.commit()
    read(("k", 1), ("k", 2))
    return script.verdict()


LOSERS = {
    "position-only": (PositionOnly, late_commit),
    "position-under-xmin": (PositionUnderXmin, late_id),
    "grace-period": (lambda: GracePeriod(0.0), late_commit),
    "gap-detection": (lambda: GapDetection(PATIENCE), late_commit),
}


@pytest.mark.parametrize("name", LOSERS)
def test_an_interleaving_of_three_transactions_makes_it_lose(script, name):
    make, interleave = LOSERS[name]
    assert interleave(script, make()).lost == 1


@pytest.mark.parametrize("interleave", [late_commit, late_id, late_lock])
@pytest.mark.parametrize("name", ["transaction-id", "snapshot", "mark"])
def test_whoever_comes_late_is_not_lost(script, name, interleave):
    verdict = interleave(script, READERS[name]())
    assert (verdict.lost, verdict.repeated) == (0, 0)
    assert verdict.reordered == (name == "transaction-id" and interleave is late_lock)


def test_a_writer_that_had_begun_before_the_last_snapshot_is_found_by_the_list_of_those_in_progress(script):
    reader = Snapshot()
    read, a = script.read(reader), script.writer()
    for number in range(1, 4):  # snapshots in which A is below the highest
        b = script.writer()
        script.write(b, "b", number)
        b.commit()
        read(("b", number))
    script.write(a, "a", 1)
    a.commit()
    read(("a", 1))
    assert script.verdict().lost == script.verdict().repeated == 0


@pytest.mark.full  # a busy machine bends its measurements
def test_the_workload_tells_the_readers_apart(dsn):
    readers = {"position-only": PositionOnly(), "transaction-id": TransactionIdAndPosition(), "snapshot": Snapshot()}
    committed, verdicts = race(dsn, readers, seconds=2)
    assert committed > 100
    assert verdicts["position-only"].lost
    assert (verdicts["transaction-id"].lost, verdicts["transaction-id"].repeated) == (0, 0)
    assert verdicts["transaction-id"].reordered
    found = verdicts["snapshot"]
    assert (found.lost, found.reordered, found.repeated) == (0, 0, 0)
    # The oldest open transaction holds up those that wait for it, and nobody else.
    assert verdicts["transaction-id"].stalled_seconds > max(0.5, found.stalled_seconds)


@pytest.mark.full  # as the workload before
def test_the_scenario_shows_every_reader_and_judges_those_that_promise_something(dsn, capsys):
    servers = Servers(dsn=dsn, bootstrap_servers="", topic="")
    results = list(measure(servers, records=2_005, rounds=1, seconds=1))
    assert [result.name for result in results if result.met is False] == []
    judged = {result.name for result in results if result.met}
    assert {"approaches-snapshot-lost", "approaches-snapshot-reordered", "approaches-mark-lost"} <= judged
    printed = capsys.readouterr().out
    assert all(name in printed for name in READERS)


def test_a_workload_that_tells_nothing_apart_is_an_error(dsn, monkeypatch):
    monkeypatch.setattr(scenario, "READERS", dict.fromkeys(READERS, Snapshot))
    with pytest.raises(RuntimeError, match="did not tell"):
        list(measure(Servers(dsn=dsn, bootstrap_servers="", topic=""), records=10, rounds=1, seconds=0.3))
