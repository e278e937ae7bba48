"""A process that ends, or power that goes, at any byte and at any call: the log is found as it was acknowledged."""

import random
import tempfile
from itertools import count
from pathlib import Path

import pytest
from support.power import MEMORY, Crash, Power

from harvest_lib.pipeline.commit_log import CommitLog, LogEntry
from harvest_lib.pipeline.commit_log.files import index_path, log_path

pytestmark = pytest.mark.quick

BATCHES = [
    [(at, 1, b"AB"[at % 2 : at % 2 + 1], b"%d" % at * (at % 5)) for at in range(n * 3, n * 3 + 3)] for n in range(4)
]
ENTRIES = [LogEntry(at, *entry) for at, entry in enumerate(entry for batch in BATCHES for entry in batch)]
ENDS = [0, 3, 6, 9, 12]
"""Ends of batches: a torn batch goes as a whole, for its checksum is that of the batch."""


@pytest.fixture
def root():
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def power(root):
    with Power(root, random.Random(1)).on() as power:
        yield power


def written(folder, power):
    """Write two batches that are synced and two that are not, and end the process. Return how long the files were when
    they were synced, and are."""
    log = CommitLog(folder, sync_seconds=1e9)
    for batch in BATCHES[:2]:
        log.append(batch)
    log.sync()
    paths = log_path(folder, 0, 0), index_path(folder, 0, 0)
    synced = [path.stat().st_size for path in paths]
    for batch in BATCHES[2:]:
        log.append(batch)
    power.kill()
    return paths, synced, [path.read_bytes() for path in paths]


@pytest.mark.parametrize("torn", [0, 1], ids=["segment", "index"])
@pytest.mark.parametrize("tail", [b"", b"\0" * 40, b"\xff" * 7], ids=["ends", "then zeros", "then other bytes"])
def test_a_tail_torn_at_any_byte_is_cut_and_reported(root, power, torn, tail):
    folder = root / "log"
    paths, synced, whole = written(folder, power)
    for end in range(synced[torn], len(whole[torn]) + 1):
        for path, data in zip(paths, whole, strict=True):
            path.write_bytes(data)
        paths[torn].write_bytes(whole[torn][:end] + tail)
        log = CommitLog(folder, sync_seconds=1e9)
        found = list(log.read(0))
        assert found == ENTRIES[: len(found)]
        assert len(found) in ENDS
        assert len(found) >= 6, "what was synced is gone"
        assert len(found) == 12 or end < len(whole[torn])
        assert (log.begin, log.end, log.synced) == (0, len(found), len(found))
        assert all(cut.offset == len(found) for cut in log.repaired)
        assert bool(log.repaired) == (len(found) < 12 or bool(tail) or end < len(whole[torn]))
        assert all(cut.path.stat().st_size >= cut.byte for cut in log.repaired)
        assert log.append(BATCHES[0]) == range(len(found), len(found) + 3)
        log.close()
        again = CommitLog(folder)
        assert again.repaired == ()
        assert [entry[1:] for entry in again.read(len(found))] == BATCHES[0]
        again.close()


def test_a_tail_with_any_byte_changed_is_cut(root, power):
    folder = root / "log"
    paths, synced, whole = written(folder, power)
    for torn in (0, 1):
        for at in range(synced[torn], len(whole[torn])):
            for path, data in zip(paths, whole, strict=True):
                path.write_bytes(data)
            changed = bytearray(whole[torn])
            changed[at] ^= 0x10
            paths[torn].write_bytes(changed)
            with CommitLog(folder) as log:
                found = list(log.read(0))
                assert found == ENTRIES[: len(found)]
                assert len(found) in {6, 9}
                assert log.repaired


def test_what_was_found_after_a_kill_is_on_the_disk_from_then_on(root, power):
    """Others act on it: a writer sends it, and its offsets are kept."""
    written(root / "log", power)
    log = CommitLog(root / "log")
    assert log.synced == 12
    power.lose()
    with CommitLog(root / "log") as log:
        assert list(log.read(0)) == ENTRIES


def test_what_a_look_sees_of_a_torn_log_is_whole(root, power):
    paths, _, whole = written(root / "log", power)
    paths[0].write_bytes(whole[0][:-1])
    view = CommitLog.look(root / "log")
    assert list(view.read(0)) == ENTRIES[:9]
    assert paths[0].read_bytes() == whole[0][:-1], "a look changes nothing"


def test_after_a_failed_sync_the_tail_is_written_again(root, power):
    """The tail read back may be in memory only: nobody would write it again, and the next sync would not know."""
    _, synced, whole = written(root / "log", power)
    again = []
    power.pwrite, real = (
        lambda handle, data, at: again.append((at, bytes(data))) or real(handle, data, at),
        power.pwrite,
    )
    with power.on():
        CommitLog(root / "log").close()
    for path_at in (0, 1):
        assert (synced[path_at], whole[path_at][synced[path_at] :]) in again


def crashing(action, power, calls):
    power.crash_after(calls)
    try:
        action()
    except Crash:
        return True
    power.crash_after(None)
    return False


def appended(log):
    log.append(BATCHES[2])


def rolled(log):
    log.append(BATCHES[2])
    log.roll()


def compacted(log):
    log.roll()
    log.compact(5)


def reopened(log):
    folder = log.folder
    log.close()
    CommitLog(folder).close()


@pytest.mark.parametrize("action", [appended, rolled, compacted, reopened])
@pytest.mark.parametrize("how", ["power", "kill, then power"])
def test_any_call_may_be_the_last(root, action, how):
    """Each call of an action in turn, the power gone in several ways: synced is synced, and all fits together."""
    crashed = True
    for calls in count():
        if not crashed:
            break
        for seed in range(8):
            here = root / f"{calls}-{seed}"
            here.mkdir()
            with Power(here, random.Random(f"{calls} {seed}")).on() as power:
                log = CommitLog(here / "log", sync_seconds=1e9)
                for batch in BATCHES[:2]:
                    log.append(batch)
                log.sync()
                crashed = crashing(lambda log=log: action(log), power, calls)
                if how == "power":
                    power.lose()
                else:
                    power.kill()
                log = CommitLog(here / "log", sync_seconds=1e9)
                known = {entry.offset for entry in log.read(0)}
                assert known >= ({4, 5} if action is compacted else {0, 1, 2, 3, 4, 5})
                log.append(BATCHES[3])
                log.sync()
                expected = list(log.read(0))
                power.lose()
                log = CommitLog(here / "log")
                assert list(log.read(0)) == expected
                assert [entry[1:] for entry in expected[-3:]] == BATCHES[3]
                assert all(entry == ENTRIES[entry.offset] for entry in expected[:-3])
                assert {path.name for path in (here / "log").iterdir()} == {
                    "lock",
                    "log.json",
                    *(path.name for segment in log._segments for path in (segment.path, segment.index)),
                }
                log.close()
