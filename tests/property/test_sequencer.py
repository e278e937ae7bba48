"""Publishers that crash, repeat and roll back; readers that crash; rings of any size: each committed message once."""

from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from support.hypothesis_profiles import examples
from support.published import Log, Publisher, Reading

from harvest_lib.consume import Flag, Message, Replay, Sequencer, pack, unpack

pytestmark = pytest.mark.quick

PUBLISHERS = 3
ZERO = bytes(16)


class Partition(RuleBasedStateMachine):
    """Publishers write to one partition, readers with rings of all sizes read it; the model is the publishers' word."""

    sequencer = Sequencer

    @initialize(rings=st.lists(st.integers(1, 6), min_size=1, max_size=3))
    def begin(self, rings):
        self.log = Log()
        self.publishers = [Publisher(number, self.log) for number in range(1, PUBLISHERS + 1)]
        self.dead = []
        self.next_number = PUBLISHERS + 1
        self.readings = [Reading(self.log, self.sequencer, ring) for ring in rings]

    def publisher(self, which):
        return self.publishers[which]

    @rule(which=st.integers(0, PUBLISHERS - 1), number=st.integers(1, 8))
    def publish_uncommitted(self, which, number):
        for _ in range(number):
            self.publisher(which).publish(Flag.CONTINUE_TXN)

    @rule(which=st.integers(0, PUBLISHERS - 1))
    def publish_committed(self, which):
        if not self.publisher(which).pending:  # the two are not mixed in a partition
            self.publisher(which).publish(Flag.OUTSIDE_TXN)

    @rule(which=st.integers(0, PUBLISHERS - 1), times=st.integers(1, 3))
    def commit(self, which, times):
        publisher = self.publisher(which)
        publisher.decide()
        for _ in range(times):
            publisher.acknowledge()

    @rule(which=st.integers(0, PUBLISHERS - 1), last=st.integers(1, 10))
    def repeat(self, which, last):
        """An append whose answer was lost is made again."""
        for message_id, record in self.publisher(which).sent[-last:]:
            self.log.append(message_id, record)

    @rule(which=st.integers(0, PUBLISHERS - 1), decided=st.booleans(), more=st.integers(0, 3))
    def crash_and_come_back(self, which, decided, more):
        """Records that it published behind its last decision are rolled back by its successor."""
        publisher = self.publisher(which)
        if decided:
            publisher.decide()
        for _ in range(more):
            publisher.publish(Flag.CONTINUE_TXN)
        publisher.end()
        self.dead.append(publisher)
        self.publishers[which] = Publisher(self.next_number, self.log)
        self.next_number += 1

    @rule(which=st.integers(0, 9), last=st.integers(1, 10), acknowledged=st.booleans())
    def repeat_for_the_dead(self, which, last, acknowledged):
        """Late repeats of a dead publisher arrive; its successor may write the acknowledgement again."""
        if not self.dead:
            return
        publisher = self.dead[which % len(self.dead)]
        for message_id, record in publisher.sent[-last:]:
            self.log.append(message_id, record)
        if acknowledged:
            publisher.end()

    @rule(which=st.integers(0, PUBLISHERS - 1), kind=st.sampled_from([None, ZERO, *Flag]), times=st.integers(1, 2))
    def write_without_a_clock(self, which, kind, times):
        """Without an id, with the zero UUID, or with a known producer's id of clock zero: each copy counts."""
        message_id = pack(self.publisher(which).number, 0, kind) if isinstance(kind, Flag) else kind
        for _ in range(times):
            record = self.log.new()
            self.log.append(message_id, record)
            self.log.expected.append(record)

    def reading(self, which):
        return self.readings[which % len(self.readings)]

    @rule(which=st.integers(0, 2), number=st.integers(1, 12), commit_after=st.sets(st.integers(0, 8), max_size=3))
    def read(self, which, number, commit_after):
        self.reading(which).take(number, commit_after)

    @rule(which=st.integers(0, 2))
    def commit_what_was_read(self, which):
        self.reading(which).commit()

    @rule(which=st.integers(0, 2))
    def crash_a_reader(self, which):
        self.reading(which).restart()

    def teardown(self):
        if not hasattr(self, "log"):
            return
        for reading in self.readings:
            found = reading.read_all()
            assert sorted(found) == sorted(self.log.expected)
            self.each_in_order(found)

    def each_in_order(self, found):
        by_record = {
            message.record: message.id
            for message in self.log.messages
            if message.record and message.id not in {None, ZERO} and unpack(message.id).clock
        }
        clocks = {}
        for record in found:
            if record in by_record:
                producer, clock, _ = unpack(by_record[record])
                assert clock > clocks.get(producer, 0)
                clocks[producer] = clock


TestPartition = Partition.TestCase
TestPartition.settings = settings(max_examples=examples(gate=200, random=1_000), stateful_step_count=20)


class LetsRepetitionsThrough(Sequencer):
    def _hold(self, message, producer, known):
        super()._hold(message, producer, known)
        known.newest = known.acknowledged


class ForgetsWhatDoesNotFit(Sequencer):
    def take(self, messages):
        return (found for found in super().take(messages) if not isinstance(found, Replay))


class ReadsAgainToTheEnd(Sequencer):
    def take(self, messages):
        for found in super().take(messages):
            yield replace(found, through=2**64) if isinstance(found, Replay) else found


class RollsNothingBack(Sequencer):
    def _acknowledge(self, offset, producer, known, clock):
        return super()._acknowledge(offset, producer, known, max(clock, known.newest))


class DropsWhatHasNoClock(Sequencer):
    def _take(self, messages):
        return super()._take(each for each in messages if each.id in {None, ZERO} or unpack(each.id).clock)


class ForgetsProducers(Sequencer):
    def states(self):
        return []


class HoldsAll(Sequencer):
    def __init__(self, *, ring, **state):
        super().__init__(ring=ring + 100, **state)


DEFECTIVE = [
    LetsRepetitionsThrough,
    ForgetsWhatDoesNotFit,
    ReadsAgainToTheEnd,
    DropsWhatHasNoClock,
    RollsNothingBack,
    ForgetsProducers,
    HoldsAll,
]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("defective", DEFECTIVE)
def test_what_is_broken_is_found_and_found_again_by_its_seed(defective):
    assert found(defective, 2) == found(defective, 2)


def found(defective, number):
    """Return the steps that show that a sequencer is broken."""
    machine = seed(number)(type("Broken", (Partition,), {"sequencer": defective}))
    once = settings(TestPartition.settings, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError) as shown:
        run_state_machine_as_test(machine, settings=once)
    return shown.value.__notes__


def naive(log):
    """Return the groups that are committed, by all that a reader could remember."""
    acknowledged, pending, committed, last = {}, {}, [], {}
    for offset, message_id, _ in log:
        producer, clock, flag = unpack(message_id)
        if clock == 0:
            committed.append([offset])
            continue
        acknowledged.setdefault(producer, clock - 1)
        waiting = pending.setdefault(producer, [])
        if flag == Flag.CONTINUE_TXN:
            if clock > max([acknowledged[producer], *(each[0] for each in waiting)]):
                waiting.append((clock, offset))
        elif flag == Flag.ACK_TXN:
            if clock > acknowledged[producer] and waiting:
                committed.append([at for each, at in waiting if each <= clock])
            is_written_again = clock == last.get(producer)
            acknowledged[producer] = max(acknowledged[producer], clock) if is_written_again else clock
            pending[producer], last[producer] = [], clock
        elif clock > acknowledged[producer]:
            committed.append([offset])
            acknowledged[producer], pending[producer] = clock, []
    return [group for group in committed if group]


IDS = st.tuples(st.integers(1, 3), st.integers(0, 12), st.sampled_from(Flag))


@settings(max_examples=examples(gate=150, random=1_000))
@example(
    ids=[(1, 1, Flag.OUTSIDE_TXN), (1, 3, Flag.CONTINUE_TXN), (1, 2, Flag.CONTINUE_TXN), (1, 2, Flag.ACK_TXN)],
    ring=1,
    stops={2},
)
@given(ids=st.lists(IDS, max_size=40), ring=st.integers(1, 12), stops=st.sets(st.integers(0, 40), max_size=6))
def test_whatever_the_ids_a_ring_and_restarts_change_nothing(ids, ring, stops):
    """Also for logs that no publisher writes: clocks that go back, acknowledgements of nothing."""
    log = Log()
    log.messages = [Message(offset, pack(*each), offset) for offset, each in enumerate(ids)]
    reading = Reading(log, Sequencer, ring)
    for stop in sorted(stops):
        reading.take(max(0, stop - reading.sequencer.offset))
        reading.commit()
        reading.restart()
    reading.read_all()
    assert [group for group in reading.kept if group] == naive(log.messages)
