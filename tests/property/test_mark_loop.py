"""The loop of a term against a model: whatever fails, dies, comes late or comes back, its promises hold.

The machine drives real loops turn by turn over fakes, by a clock of its own. A question to the database stays
unanswered until a rule has it answered, so reports, failures and the end of the term come in between. A term may
freeze: a successor takes over, and what the frozen one had asked reaches the database at any later time.
"""

import sys
import threading
import uuid
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.fakes import FakeDelivery, FakeSource, FakeTable
from support.hypothesis_profiles import examples
from support.rows import row

from harvest_lib.config import Limits
from harvest_lib.delivery import Failure, Reports
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.marking.loop import MarkLoop
from harvest_lib.marking.ports import MarkPorts
from harvest_lib.marking.requests import PendingRequest
from harvest_lib.outbox.parking_rules import ParkingRules

pytestmark = pytest.mark.quick

KEYS = ["a", "b", "c"]
TURN_SECONDS = 0.002
TURNS_PER_ROW = 20
TURNS_TO_FLY = 4
TURNS_BETWEEN = 6
"""A leader that leads for less does little."""
LANDS, FAILS, ARRIVES_AND_FAILS = "lands", "fails", "arrives and fails"


class Asks:
    """Stands for the source's thread. Calls are made in order: at once if `prompt`, else when `work` says so."""

    def __init__(self, source):
        self.source = source
        self.prompt = False
        self._asked = deque()

    def ask(self, call):
        answer = Future()
        self._asked.append((call, answer))
        if self.prompt:
            self.work()
        return answer

    def work(self):
        while self._asked:
            call, answer = self._asked.popleft()
            try:
                answer.set_result(call(self.source))
            except DatabaseUnavailable as error:
                answer.set_exception(error)

    def cut(self):
        """Cut the connection: the call gets no answer, but the server may still make it. Returns that, or None."""
        if not self._asked:
            return None
        call, answer = self._asked.popleft()
        server = FakeSource(self.source.table)
        server.open(self.source._leader)
        answer.set_exception(DatabaseUnavailable("Postgres does not answer", evidence="cut", next_step="none"))
        return lambda: call(server)


class Broker(FakeDelivery):
    """A delivery of which the machine decides what lands, in which order, and what is said of it.

    If `piped`, each key has a lane that does as Pipelined does: a failure halts it, what was sent behind fails with it
    and never arrived, and nothing more is taken before it begins again. Such records land in order.
    """

    def __init__(self, machine, *, piped):
        super().__init__()
        self.prompt = False  # all lands at the next poll
        self.lands_at_abandon = 0
        self._machine = machine
        self._piped = piped
        self._reports = Reports()
        self._halted = set()
        self._suspects = set()

    @property
    def flying(self):
        return list(self._in_flight)

    def begin(self, leader_id):
        super().begin(leader_id)
        self._machine.begins(leader_id)
        self._halted.clear()

    def send(self, rows, may_send):
        left, full, rows = deque(), set(self._halted), rows.rows
        while rows and may_send():
            if rows[0][2] in full or self._must_wait(rows[0]):
                full.add(rows[0][2])
                left.append(rows.popleft())
            else:
                self._machine.sends(self, self._leader, rows[0])
                self._in_flight.append((self._leader, rows.popleft()))
        rows.extendleft(reversed(left))

    def _must_wait(self, sending):
        """Return True if a suspect is alone with Kafka, or wants to be."""
        lane = [flying[0] for _, flying in self._in_flight if flying[2] == sending[2]] if self._piped else []
        return bool(lane) and not self._suspects.isdisjoint([*lane, sending[0]])

    def poll(self, timeout_seconds):  # noqa: ARG002 - nothing here takes time
        self._machine.seconds += TURN_SECONDS
        if self.prompt:
            for flight in self.flying:
                self.report(flight, LANDS)
        reports, self._reports = self._reports, Reports()
        return reports

    def abandon(self):
        self.cut_off(self.lands_at_abandon)
        self.abandoned += 1
        self._reports.failed.extend(Failure(row=sent, reason="purged") for _, sent in self._in_flight)
        self._in_flight.clear()
        self._reports.halted = False
        reports, self._reports = self._reports, Reports()
        return reports

    def cut_off(self, arrive, *, acknowledged=False):
        """Let the first so many of what is flying arrive; the rest never does."""
        for flight in self.flying:
            if arrive and self._machine.is_good(flight[1]):
                arrive -= 1
                self._machine.arrives(*flight)
                if acknowledged:
                    self._in_flight.remove(flight)
                    self._reports.acknowledged.append(flight[1][0])
            elif self._piped:
                break

    def report(self, flight, outcome):
        if flight not in self._in_flight:
            return
        for before in self._lane(flight):
            if before is flight:
                break
            if not self._machine.is_good(before[1]):
                flight, outcome = before, FAILS
                break
            self._land(before)
        if outcome == LANDS and self._machine.is_good(flight[1]):
            self._land(flight)
        else:
            self._fail(flight, outcome)

    def _land(self, flight):
        self._machine.arrives(*flight)
        self._in_flight.remove(flight)
        self._reports.acknowledged.append(flight[1][0])

    def _fail(self, flight, outcome):
        lane, good = self._lane(flight), self._machine.is_good(flight[1])
        if self._piped:
            self._halted.add(flight[1][2])
            self._reports.halted = True
        if outcome == ARRIVES_AND_FAILS and good:
            self._machine.arrives(*flight)
        refused = not good and len(lane) == 1  # else its batch was
        if not good:
            self._suspects.update(each[1][0] for each in lane)
        for each in lane:
            self._in_flight.remove(each)
            self._reports.failed.append(Failure(row=each[1], reason=outcome, refused=refused))

    def _lane(self, flight):
        return [each for each in self._in_flight if each[1][2] == flight[1][2]] if self._piped else [flight]


class Process:
    """One process that leads: a loop with its delivery, its source and what stands for the source's thread."""

    def __init__(self, machine):
        self._machine = machine
        self.source = FakeSource(machine.table)
        self.asks = Asks(self.source)
        self.broker = Broker(machine, piped=not machine.barrier)

    def lead(self):
        machine = self._machine
        self.straggled, self.answers_lost = False, self.source.answers_lost
        self.term, self.stopping = Term(uuid.uuid4()), threading.Event()
        self.leader_ids = [self.term.leader_id]
        ports = MarkPorts(
            source=self.asks,
            delivery=self.broker,
            parking=ParkingRules(machine.parking, machine.refusals),
            limits=machine.limits,
            one_per_key=machine.barrier,
            emit=self._emit,
            delivered=lambda _: None,
        )
        self.loop = MarkLoop(self.term, ports, self.stopping)
        self.loop.begin()

    def _emit(self, event):
        if isinstance(event, LeaderRefreshed):
            self.leader_ids.append(event.leader_id)


def _waiting(machine):
    """Return how to wait for an answer by the machine's clock: it comes when a rule says so, or not at all."""

    def wait(enquiry, seconds):
        if enquiry.pending and not enquiry._answer.done():
            machine.seconds += seconds

    return wait


class Pool(RuleBasedStateMachine):
    """Processes that lead one after the other on one table; the model is what was committed and what is in Kafka."""

    def __init__(self):
        super().__init__()
        self.stack = ExitStack()

    @initialize(
        barrier=st.booleans(),
        parking=st.sampled_from(["hold_key", "hold_key", "skip"]),
        window=st.integers(1, 6),
        query=st.integers(1, 5),
    )
    def begin(self, barrier, parking, window, query):
        self.barrier, self.parking, self.window = barrier, parking, window
        self.limits = Limits(
            max_in_flight_records=window,
            mark_query_records=query,
            io_error_backoff_seconds=0.004,
            mark_backoff_seconds=0.01,
            queue_timeout_seconds=2.0,
            drain_interval_seconds=0.2,
        )
        self.seconds = 1_000.0
        for module in ("marking.loop", "clock"):
            self.stack.enter_context(patch(f"harvest_lib.{module}.boot_seconds", lambda: self.seconds))
        self.stack.enter_context(patch.object(PendingRequest, "wait", _waiting(self)))
        self.table = FakeTable()
        self.next_id = 1
        self.committed = {key: [] for key in KEYS}  # ids in commit order
        self.uncommitted = {}  # key -> row, whose writer holds the key's lock
        self.bad, self.seen_before = set(), set()  # ids Kafka refuses; those of which it is known before they are sent
        self.log = {key: [] for key in KEYS}  # (leader id, outbox id)
        self.leader_ids = set()
        self.process = Process(self)
        self.process.lead()
        self.turns = 0
        self.stolen = False
        self.frozen = []
        self.stragglers = []  # calls that a server may still make for a connection that was cut

    # -- calls of the fakes

    def refusals(self, rows):
        return {each[0]: "bad" for each in rows if each[0] in self.seen_before}

    def is_good(self, sent):
        return sent[0] not in self.bad

    def begins(self, leader_id):
        assert leader_id not in self.leader_ids, "a leader id that was used before"
        self.leader_ids.add(leader_id)

    def sends(self, broker, leader_id, sent):
        process = self.process
        assert broker is process.broker, "sent by a process that was fenced"
        assert process.term.is_live()
        assert leader_id == process.loop.leader_id
        assert sent[0] not in self.seen_before
        assert process.loop.in_flight.records <= self.window
        assert sent[0] not in {flying[0] for _, flying in broker.flying}
        if self.barrier:
            assert sent[2] not in {flying[2] for _, flying in broker.flying}, "two of a key in flight"
            # A row stolen while it was refused is not parked; it is refused once more.
            order = self._order(sent[2]) if self.stolen else self.committed[sent[2]]
            before = {i for i in order if i < sent[0]}
            if self.parking == "skip":
                before -= self.seen_before  # refused unsent, by each leader: nobody waits until it is parked
            assert not before & set(self.table.rows), "sent before its predecessor was purged"

    def arrives(self, leader_id, sent):
        record_id, log, order = sent[0], self.log[sent[2]], self._order(sent[2])
        place = order.index(record_id)
        before = order.index(log[-1][1]) if log else -1
        allowed = {before, before + 1} if self.barrier else {before + 1}
        again = place <= before and leader_id not in {leader for leader, _ in log}
        assert place in allowed or (again and not self.barrier), f"{record_id} behind {log[-3:]} in {order}"
        assert (leader_id, record_id) not in log, "twice under one leader id"
        log.append((leader_id, record_id))

    def _order(self, key):
        """Return the ids of a key as they have to arrive; under `skip` it goes on without the bad."""
        return [i for i in self.committed[key] if self.parking == "hold_key" or i not in self.bad]

    # -- writers

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), bad=st.integers(0, 7))
    def write(self, keys, bad):
        for key in keys:
            if key not in self.uncommitted:
                self._commit(self._new(key, bad))
                bad = 7

    @rule(key=st.sampled_from(KEYS), bad=st.integers(0, 7))
    def insert_and_wait(self, key, bad):
        """A transaction takes an id and commits later, when higher ones have long been marked."""
        if key not in self.uncommitted:
            self.uncommitted[key] = self._new(key, bad)

    @precondition(lambda self: self.uncommitted)
    @rule(number=st.integers(0, 9))
    def commit_late(self, number):
        key = sorted(self.uncommitted)[number % len(self.uncommitted)]
        self._commit(self.uncommitted.pop(key))

    def _new(self, key, bad):
        record_id, self.next_id = self.next_id, self.next_id + 1
        if bad < 2:
            self.bad.add(record_id)
        if bad == 0:
            self.seen_before.add(record_id)
        return row(record_id, key)

    def _commit(self, new):
        self.committed[new[2]].append(new[0])
        self.table.insert(new)

    # -- the leader, its database and Kafka

    @rule(number=st.integers(1, 12), prompt=st.booleans())
    def turn(self, number, prompt):
        self.process.asks.prompt = prompt
        self._turn(number)

    def _turn(self, number):
        self.turns += number
        for _ in range(number):
            self.process.loop.turn()

    @rule()
    def answer(self):
        self.process.asks.work()

    @rule(number=st.integers(1, 8))
    def turn_and_land(self, number):
        self.process.asks.prompt = self.process.broker.prompt = True
        self.process.asks.work()
        self._turn(number)
        self.process.broker.prompt = False

    @rule(seconds=st.sampled_from([0.006, 0.05, 3.0]))
    def wait(self, seconds):
        self.seconds += seconds

    @rule(
        outcomes=st.lists(
            st.tuples(st.integers(0, 9), st.sampled_from([FAILS, ARRIVES_AND_FAILS, LANDS])), min_size=1, max_size=4
        ),
        number=st.integers(0, 8),
        prompt=st.booleans(),
    )
    def report(self, outcomes, number, prompt):
        self._get_flying()
        for place, outcome in outcomes:
            if flying := self.process.broker.flying:
                self.process.broker.report(flying[place % len(flying)], outcome)
        self.process.asks.prompt = prompt
        self._turn(number)

    def _get_flying(self):
        self.process.asks.prompt = True
        self.process.asks.work()
        for _ in range(TURNS_TO_FLY):
            if self.process.broker.flying:
                break
            self.seconds += 0.01
            self._turn(1)

    @rule(outages=st.integers(0, 3), lost_answers=st.integers(0, 2))
    def trouble(self, outages, lost_answers):
        self.process.source.outages, self.process.source.lost_answers = outages, lost_answers

    @rule()
    def cut(self):
        if call := self.process.asks.cut():
            self.stragglers.append(call)

    @precondition(lambda self: self.stragglers)
    @rule(number=st.integers(0, 9))
    def straggle(self, number):
        self.stragglers.pop(number % len(self.stragglers))()
        self.stolen = self.process.straggled = True

    # -- other processes, and operators

    @rule(limit=st.integers(1, 5), given_back=st.booleans(), purged=st.booleans())
    def steal(self, limit, given_back, purged):
        """A fenced leader marks, gives back, and purges what Kafka acknowledged."""
        former = FakeSource(self.table)
        former.open(uuid.uuid4())
        stolen = [each[0] for each in former.fetch(limit).rows]
        self.stolen = True
        if given_back:
            before = self.table.leaders()
            former.reset(self.table.ids)
            assert not [i for i, leader in self.table.leaders().items() if leader != before[i] and i not in stolen]
        if purged and self.barrier:
            former.fetch(0, [i for i in stolen if i in self._arrived()])

    @precondition(lambda self: self.table.parked)
    @rule(number=st.integers(0, 9), cured=st.booleans())
    def retry(self, number, cured):
        keys = sorted(key for _, key in self.table.parked_keys)
        if self.parking == "hold_key" and keys:
            key = keys[number % len(keys)]
            if cured:
                self._cure(key)
            self.table.retry(key)

    def _cure(self, key):
        self.bad -= set(self.committed[key])
        self.seen_before -= set(self.committed[key])

    # -- ends of terms

    @precondition(lambda self: self.turns >= TURNS_BETWEEN)
    @rule(how=st.sampled_from(["stopped", "revoked", "fenced"]), prompt=st.booleans(), arrive=st.integers(0, 9))
    def end(self, how, prompt, arrive):
        process, loop = self.process, self.process.loop
        knows = not process.straggled and process.source.answers_lost == process.answers_lost  # what was marked
        losses = process.source.calls.count("close")
        process.asks.prompt = prompt
        if prompt:
            process.asks.work()
        process.broker.prompt, process.broker.lands_at_abandon = arrive > 6, arrive
        if how == "stopped":
            process.stopping.set()
        else:
            process.term.end(TermEnd[how.upper()])
        loop._end()
        process.broker.prompt = False
        assert not process.broker.flying
        if prompt and how != "fenced" and knows and process.source.calls.count("close") == losses:
            assert not set(process.leader_ids) & set(self.table.leaders().values()), "marked and not given back"
        process.lead()
        self.turns = 0

    @precondition(lambda self: self.turns >= TURNS_BETWEEN)
    @rule(arrive=st.integers(0, 9), acknowledged=st.booleans())
    def freeze(self, arrive, acknowledged):
        """The process stands still, for longer than it may; requests that had left it arrive, or do not."""
        self.process.broker.cut_off(arrive, acknowledged=acknowledged)
        self.process.broker.lands_at_abandon = 0
        self.process.asks.prompt = False
        self.frozen.append(self.process)
        self.process = Process(self)
        self.process.lead()
        self.turns = 0

    @precondition(lambda self: self.frozen)
    @rule(number=st.integers(0, 9), turns=st.integers(0, 1), asked=st.booleans())
    def thaw(self, number, turns, asked):
        """It notices, at the latest before it sends; its calls reach the database now, or never."""
        process = self.frozen.pop(number % len(self.frozen))
        self.stolen = True
        process.term.end(TermEnd.FENCED)
        if asked:
            process.asks.prompt = True
            process.asks.work()
        for _ in range(turns):
            process.loop.turn()
        process.loop._end()

    # -- invariants

    def _arrived(self):
        return {record_id for log in self.log.values() for _, record_id in log}

    @invariant()
    def nothing_is_lost(self):
        there = {*self.table.rows, *self.table.parked, *self._arrived()}
        assert {i for ids in self.committed.values() for i in ids} <= there

    @invariant()
    def the_window_holds(self):
        flight, broker = self.process.loop.in_flight, self.process.broker
        assert len(broker.flying) <= flight.records <= self.window

    def teardown(self):
        """Let everything land: whatever was committed is in Kafka, or parked until somebody cures it."""
        with self.stack:
            if sys.exc_info()[0] is not None:
                return
            for key in list(self.uncommitted):
                self._commit(self.uncommitted.pop(key))
            self._drain()
            for _, key in sorted(self.table.parked_keys) if self.parking == "hold_key" else ():
                self._cure(key)
                self.table.retry(key)
            self._drain()
            expected = {i for ids in self.committed.values() for i in ids}
            assert self._arrived() == expected - (set() if self.parking == "hold_key" else self.bad)
            self.nothing_is_lost()

    def _drain(self):
        process = self.process
        process.source.outages = process.source.lost_answers = 0
        process.asks.prompt = process.broker.prompt = True
        process.asks.work()
        for _ in range(TURNS_PER_ROW * (len(self.table.rows) + 2)):
            if not self.table.rows:
                break
            process.loop.turn()
            self.seconds += 0.05
        assert not self.table.rows, "rows that were never sent"


Pool.TestCase.settings = settings(
    max_examples=examples(gate=200, random=1_000),
    stateful_step_count=35,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining would trace every line
)
TestPool = Pool.TestCase


def machine(**settings):
    made = Pool()
    made.begin(**{"barrier": True, "parking": "hold_key", "window": 6, "query": 6, **settings})
    return made


def _ask_for_park(pool):
    """Have the leader ask for a park, of record 1, and return what has asked."""
    pool.write(["a"], bad=0)
    process = pool.process
    while not (process.loop._parking.has_work and process.loop._request.pending):
        process.asks.work()
        pool.wait(0.05)
        pool.turn(1, prompt=False)
    return process


def test_a_park_that_comes_late_holds_the_key_for_the_leader_that_is_there():
    """A leader freezes with a park on its way; it arrives after the successor has read which keys are held."""
    pool = machine()
    with pool.stack:
        former = _ask_for_park(pool)
        pool.freeze(arrive=0, acknowledged=False)
        pool.answer()
        former.asks.work()
        assert pool.table.parked_keys == {("t", "a"): 1}
        pool.write(["a"], bad=7)
        pool.turn_and_land(8)  # `arrives` sees record 2, with record 1 parked


def test_pipelined_a_purge_that_comes_late_leaves_no_record_without_its_successors():
    """A frozen leader had 1 and 2 acknowledged; when it thaws, its successor has sent 1 once more, and not 2.

    A purge that was already on its way to the server cannot be called back: the barrier does not mind, pipelined does.
    """
    pool = machine(barrier=False)
    with pool.stack:
        pool.write(["a", "a"], bad=7)
        pool._get_flying()
        pool.freeze(arrive=2, acknowledged=True)
        pool._get_flying()
        pool.process.broker.report(pool.process.broker.flying[0], ARRIVES_AND_FAILS)
        pool.thaw(number=0, turns=0, asked=True)
        pool._drain()
        assert [record_id for _, record_id in pool.log["a"]] == [1, 2, 1, 1, 2], "a run without a gap"
