"""Whatever lands, fails or comes back, in whatever order: the barrier and the window hold, and nothing is forgotten."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.rows import row

from harvest_lib.marking.window import KeyBarrierWindow

pytestmark = pytest.mark.quick

KEYS = ["a", "b", "c"]


class Barrier(RuleBasedStateMachine):
    """A table of rows, a leader that marks them, a broker that acknowledges or fails them; the model is the table."""

    @initialize(window=st.integers(1, 6))
    def begin(self, window):
        self.window = window
        self.flight = KeyBarrierWindow(window)
        self.next_id = 1
        self.table = {}  # id -> row, in order: what is not purged
        self.marked = set()
        self.flying = {}
        self.log = []  # ids in the order in which the broker took them
        self.dropped_or_failed = False

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def write(self, keys):
        for key in keys:
            self.table[self.next_id] = row(self.next_id, key)
            self.next_id += 1

    @rule(limit=st.integers(1, 5))
    def mark(self, limit):
        head = [i for i in sorted(self.table) if i not in self.marked][:limit]
        self.marked.update(head)
        self.flight.offer([self.table[i] for i in head])

    @rule()
    def send(self):
        for sent in self.flight.admit():
            assert sent[2] not in {f[2] for f in self.flying.values()}, "two of a key in flight"
            self.flying[sent[0]] = sent
            self.log.append(sent)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def acknowledge(self, data):
        landed = self.flying.pop(data.draw(st.sampled_from(sorted(self.flying))))
        del self.table[landed[0]]
        self.flight.settle([landed[0]])

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def fail(self, data):
        """B2 to B5, then A9: everything that is not in flight is marked again from the head."""
        failed = self.flying.pop(data.draw(st.sampled_from(sorted(self.flying))))
        self.flight.settle([failed[0]])
        self.flight.drop_pending()
        self.marked.clear()

    @rule()
    def steal(self):
        """A fenced leader marks everything; we mark it all again."""
        self.marked.clear()

    @invariant()
    def window_holds(self):
        assert len(self.flying) == self.flight.records <= self.window
        assert set(self.flight.keys) == {f[2] for f in self.flying.values()}

    @invariant()
    def no_key_steps_back(self):
        last = {}
        for sent in self.log:
            assert sent[0] >= last.get(sent[2], 0), "R0 R1 R2 R0"
            last[sent[2]] = sent[0]

    def teardown(self):
        """Let everything land: nothing may be left in the table."""
        for _ in range(1000):
            if not self.table:
                break
            self.mark(limit=5)
            self.send()
            for record_id in list(self.flying):
                landed = self.flying.pop(record_id)
                del self.table[record_id]
                self.flight.settle([landed[0]])
        assert not self.table, "rows that were never sent"


Barrier.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestBarrier = Barrier.TestCase
