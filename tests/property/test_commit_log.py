"""Whatever is appended, acknowledged, compacted, and wherever the process ends or the power goes: synced entries are
there, all entries there were written so, and offsets stand for the same ones. The model: a list, two dictionaries.
"""

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.hypothesis_profiles import examples
from support.power import MEMORY, Crash, Power

from harvest_lib.pipeline.commit_log import CommitLog, LogEntry, log, segment
from harvest_lib.pipeline.offset_log import OffsetLog

pytestmark = pytest.mark.quick

ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1), st.integers(0, 31), st.sampled_from([b"A", b"B", b"CC", b""]), st.binary(max_size=90)
    ),
    min_size=1,
    max_size=8,
)
CALLS = st.integers(0, 30)


class Logs(RuleBasedStateMachine):
    """A commit log, a writer's offset log, and a machine that stops at any call and forgets what was not synced."""

    @initialize(
        seed=st.integers(0, 2**32),
        segment_bytes=st.sampled_from([1, 150, 400, 5_000]),
        block_bytes=st.sampled_from([40, 150, 1 << 16]),
        sync_seconds=st.sampled_from([0.0, 2.0]),
    )
    def begin(self, seed, segment_bytes, block_bytes, sync_seconds):
        self.held = ExitStack()
        root = Path(self.held.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        self.power = self.held.enter_context(Power(root, random.Random(seed)).on())
        for module in (log, segment):
            self.held.enter_context(mock.patch.object(module, "BLOCK_BYTES", block_bytes))
        self.folder, self.offsets_folder = root / "log", root / "offsets"
        self.settings = {"segment_bytes": segment_bytes, "sync_seconds": sync_seconds}
        self.now = 0.0
        self.entries = []  # all there ever were, by offset
        self.gone = set()  # offsets that were compacted away
        self.acknowledged = {}
        self.flushed = {}
        self.log = self.offsets = None
        self.reopen()

    # -- actions

    @rule(batch=ENTRIES)
    def append(self, batch):
        first = len(self.entries)
        assert self.log.append(iter(batch)) == range(first, first + len(batch))
        self.entries += [LogEntry(first + number, *entry) for number, entry in enumerate(batch)]

    @rule()
    def sync(self):
        self.log.sync()
        assert self.log.synced == len(self.entries)

    @rule()
    def time_passes(self):
        self.now += 3.0
        self.log.sync_if_due()
        assert self.log.synced == len(self.entries)

    @rule(part=st.floats(0, 1))
    def compact(self, part):
        up_to = round(part * len(self.entries))
        droppable = self.droppable(up_to)
        self.log.compact(up_to)
        self.gone |= droppable

    @rule()
    def roll(self):
        self.log.roll()

    @rule(part=st.floats(0, 1, exclude_max=True))
    def acknowledge(self, part):
        if self.entries:
            entry = self.entries[int(part * len(self.entries))]
            self.offsets.acknowledge(entry.key, entry.offset)
            self.acknowledged[entry.key] = max(entry.offset, self.acknowledged.get(entry.key, -1))

    @rule()
    def flush(self):
        self.offsets.flush()
        assert not self.offsets._waiting
        self.flushed = dict(self.acknowledged)

    @rule()
    def compact_offsets(self):
        self.offsets.compact()

    @rule()
    def restart(self):
        self.offsets.close()
        self.log.close()
        self.flushed = dict(self.acknowledged)
        self.reopen()
        assert self.log.repaired == ()

    # -- faults

    @rule(loses_power=st.booleans(), in_opening=st.none() | CALLS)
    def crash(self, loses_power, in_opening):
        self.comes_back(loses_power=loses_power, in_opening=in_opening)

    @rule(calls=CALLS, batch=ENTRIES, loses_power=st.booleans(), in_opening=st.none() | CALLS)
    def crash_in_append(self, calls, batch, loses_power, in_opening):
        first = len(self.entries)
        tried = [LogEntry(first + number, *entry) for number, entry in enumerate(batch)]
        if self.crashes(calls, lambda: self.append(batch)):
            self.comes_back(loses_power=loses_power, in_opening=in_opening, tried=tried)

    @rule(calls=CALLS, part=st.floats(0, 1), loses_power=st.booleans(), in_opening=st.none() | CALLS)
    def crash_in_compact(self, calls, part, loses_power, in_opening):
        droppable = self.droppable(round(part * len(self.entries)))
        if self.crashes(calls, lambda: self.compact(part)):
            self.comes_back(loses_power=loses_power, in_opening=in_opening, perhaps_gone=droppable)

    @rule(
        calls=CALLS,
        what=st.sampled_from(["sync", "roll", "flush", "compact_offsets"]),
        loses_power=st.booleans(),
        in_opening=st.none() | CALLS,
    )
    def crash_in(self, calls, what, loses_power, in_opening):
        if self.crashes(calls, getattr(self, what)):
            self.comes_back(loses_power=loses_power, in_opening=in_opening)

    # -- invariants

    @invariant()
    def is_there(self):
        if not hasattr(self, "entries"):
            return
        expected = [entry for entry in self.entries if entry.offset not in self.gone]
        assert list(self.log.read(0)) == expected
        assert (self.log.begin, self.log.end) == (expected[0].offset if expected else self.log.end, len(self.entries))
        newest = {}
        for entry in expected:
            newest[entry.key] = entry
        assert self.log.newest() == newest
        assert self.offsets.by_namespace == self.acknowledged
        assert self.offsets.position == max(self.acknowledged.values(), default=-1) + 1

    def teardown(self):
        if hasattr(self, "held"):
            if self.log is not None and self.log.end:
                middle = self.log.end // 2
                expected = [each for each in self.entries if each.offset >= middle and each.offset not in self.gone]
                assert list(CommitLog.look(self.folder).read(middle)) == expected
            self.held.close()

    # -- how

    def droppable(self, up_to):
        active = self.log._segments[-1].base
        newest = {entry.key: entry.offset for entry in self.entries[:active]}
        return {each.offset for each in self.entries[: min(active, up_to)] if newest[each.key] != each.offset}

    def crashes(self, calls, action):
        self.power.crash_after(calls)
        try:
            action()
        except Crash:
            return True
        self.power.crash_after(None)
        return False

    def comes_back(self, *, loses_power, in_opening, tried=(), perhaps_gone=frozenset()):
        synced = self.log.synced
        for calls in (in_opening, None):
            if loses_power:
                self.power.lose()
            else:
                self.power.kill()
            if calls is not None:
                self.power.crash_after(calls)
            try:
                self.reopen()
            except Crash:
                continue
            self.power.crash_after(None)
            break
        candidates = [*self.entries, *tried]
        found = list(self.log.read(0))
        least = synced if loses_power else len(self.entries)
        assert least <= self.log.end <= len(candidates), "what was synced is gone"
        self.entries = candidates[: self.log.end]
        offsets = {entry.offset for entry in found}
        assert offsets <= set(range(len(self.entries))) - self.gone
        assert offsets >= set(range(len(self.entries))) - self.gone - perhaps_gone
        assert found == [self.entries[entry.offset] for entry in found], "what is there was not written so"
        self.gone = set(range(len(self.entries))) - offsets
        self.offsets.check(self.log.end)
        now = self.offsets.by_namespace
        for key, offset in now.items():
            assert self.flushed.get(key, -1) <= offset <= self.acknowledged[key]
        assert now.keys() >= self.flushed.keys()
        self.acknowledged = dict(now)
        self.flushed = dict(now)

    def reopen(self):
        self.log = CommitLog(self.folder, clock=lambda: self.now, **self.settings)
        self.offsets = OffsetLog(self.offsets_folder, sync_log=self.log.sync, segment_bytes=120)


def test_nothing_synced_is_lost_and_nothing_torn_is_read():
    run_state_machine_as_test(
        Logs, settings=settings(max_examples=examples(gate=100, random=1_000), stateful_step_count=12)
    )


@pytest.mark.long
def test_nothing_synced_is_lost_and_nothing_torn_is_read_for_long():
    run_state_machine_as_test(Logs, settings=settings(max_examples=10_000, stateful_step_count=40))
