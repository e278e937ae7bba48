"""A disk that is full, or fails, at any call: appended entries are still there, whole, and all goes on afterwards."""

import errno
import os
import random
import tempfile
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from unittest import mock

import pytest
from support.power import MEMORY

from harvest_lib.errors import LogUnwritable
from harvest_lib.pipeline.commit_log import CommitLog, LogEntry
from harvest_lib.pipeline.offset_log import OffsetLog

pytestmark = pytest.mark.quick

CALLS = ("open", "pwrite", "ftruncate", "truncate", "fdatasync", "fsync", "mkdir", "replace", "unlink")
REAL = {name: getattr(os, name) for name in CALLS}
STEPS = ("append", "append", "sync", "acknowledge", "flush", "roll", "compact") * 3


class Fault:
    """Has the call fail that is the `at`-th to change something; all of them from it on with `lasting`."""

    def __init__(self, at, error, *, lasting, only):
        self.at, self.error, self.lasting, self.only = at, error, lasting, only
        self.calls = 0
        self.hit = False
        self.over = False
        self._dice = random.Random(at)

    @contextmanager
    def on(self):
        patches = [mock.patch.object(os, name, self._failing(name)) for name in CALLS]
        for patch in patches:
            patch.start()
        try:
            yield self
        finally:
            for patch in patches:
                patch.stop()

    def _failing(self, name):
        def call(*arguments, **more):
            looks = name == "open" and not arguments[1] & os.O_CREAT
            if self.over or looks or self.only not in {None, name}:
                return REAL[name](*arguments, **more)
            self.calls += 1
            if self.calls == self.at or (self.lasting and self.calls > self.at):
                self.hit = True
                if name == "pwrite" and self._dice.random() < 0.5:
                    handle, data, at = arguments
                    REAL["pwrite"](handle, bytes(data)[: self._dice.randrange(len(data))], at)
                raise OSError(self.error, os.strerror(self.error))
            return REAL[name](*arguments, **more)

        return call


class Model:
    """Entries that were appended, acknowledged and flushed, and those that may be compacted away by now."""

    def __init__(self, folder):
        self.log = CommitLog(folder / "log", segment_bytes=300, sync_seconds=1e9)
        self.offsets = OffsetLog(folder / "offsets", sync_log=self.log.sync, segment_bytes=150)
        self.entries = []
        self.acknowledged = self.flushed = -1
        self._number = 0

    def append(self):
        self._number += 1
        batch = [(self._number, 1, b"ABC"[at % 3 :][:1], b"%d %d" % (self._number, at)) for at in range(4)]
        first = self.log.end
        try:
            self.log.append(batch)
        finally:  # entries that came into the log before it failed are there, too
            self.entries += [LogEntry(first + at, *entry) for at, entry in enumerate(batch[: self.log.end - first])]

    def sync(self):
        self.log.sync()

    def roll(self):
        self.log.roll()

    def acknowledge(self):
        self.acknowledged = self.log.end - 1
        self.offsets.acknowledge(b"A", self.acknowledged)

    def flush(self):
        self.offsets.flush()
        self.flushed = self.acknowledged

    def compact(self):
        self.log.compact(self.flushed + 1)

    def files(self):
        return {path.name for path in self.log.folder.glob("0*")}

    def named(self):
        return {path.name for each in self.log._segments for path in (each.path, each.index)}

    def holds(self):
        found = {entry.offset: entry for entry in self.log.read(0)}
        newest = {entry.key: entry for entry in self.entries}
        assert all(found[offset] == self.entries[offset] for offset in found)
        assert found.keys() >= set(range(self.flushed + 1, len(self.entries)))
        assert (self.log.end, self.log.newest()) == (len(self.entries), newest)


@pytest.mark.parametrize("only", [None, "pwrite", "fdatasync", "fsync", "replace", "unlink", "open"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "error", [pytest.param(errno.ENOSPC, id="full"), pytest.param(errno.EIO, id="failing", marks=pytest.mark.long)]
)
def test_any_call_may_fail(error, lasting, only):
    for at in count(1):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            model = Model(Path(folder))
            with Fault(at, error, lasting=lasting, only=only).on() as fault:
                for step in STEPS:
                    with suppress(LogUnwritable):
                        getattr(model, step)()
                    model.holds()
                    if only in {"pwrite", "fdatasync", "open"}:
                        assert model.files() == model.named(), "what was not finished takes no room"
                fault.over = True
                for log in (model.offsets, model.log):
                    with suppress(LogUnwritable):
                        log.close()
            model.log = CommitLog(Path(folder) / "log")
            assert model.log.repaired == () or (lasting and only != "fdatasync"), "what failed left nothing behind"
            model.holds()
            offsets = OffsetLog(Path(folder) / "offsets", sync_log=model.log.sync)
            assert model.flushed <= offsets.position - 1 <= model.acknowledged
            offsets.check(model.log.end)
            model.append()
            model.holds()
            offsets.close()
            model.log.close()
        if not fault.hit:
            break
    assert at > 3
