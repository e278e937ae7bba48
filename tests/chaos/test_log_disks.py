"""A commit log and its offsets on a disk that is full, or may only be read: nothing acknowledged is lost, and all goes
on when there is room."""

import os
import resource
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.machine import require

from harvest_lib.errors import LogUnwritable
from harvest_lib.pipeline.commit_log import CommitLog, files
from harvest_lib.pipeline.offset_log import OffsetLog
from infra.chaos.disk import Disk
from infra.chaos.namespaces import mounts_lacking, own_mounts, run

pytestmark = pytest.mark.full


@contextmanager
def a_disk(tmp_path):
    """Have one in `disk`. No fixture: pytest's threads must not begin in there."""
    require(mounts_lacking(), "mount")
    with own_mounts():
        yield Disk(tmp_path / "disk")


def batch(number, size=4_000):
    return [(number, 1, b"A", b"%d" % number + b"x" * size) for _ in range(3)]


def values(log):
    return [entry.value for entry in log.read(0)]


@pytest.mark.parametrize("segment_bytes", [1 << 30, 15_000], ids=["one segment", "several"])
def test_a_full_disk_stops_the_log_and_it_goes_on_when_there_is_room(tmp_path, segment_bytes):
    with a_disk(tmp_path) as disk:
        folder = tmp_path / "disk" / "log"
        log = CommitLog(folder, segment_bytes=segment_bytes, sync_seconds=0.0)
        offsets = OffsetLog(tmp_path / "disk" / "offsets", sync_log=log.sync)
        kept = []
        for number in range(5):
            log.append(batch(number))
            kept += [entry[3] for entry in batch(number)]
        offsets.acknowledge(b"A", 14)
        offsets.flush()
        disk.fill()
        for _ in range(3):
            with pytest.raises(LogUnwritable, match="No space left") as raised:
                log.append(batch(6, size=100_000))
            assert "make room" in raised.value.next_step
            assert values(log)[: len(kept)] == kept
        assert log.end == log.synced == 15
        offsets.acknowledge(b"A", 15)
        view = CommitLog.look(folder)
        assert values(view) == kept
        disk.empty()
        assert log.append(batch(7)) == range(15, 18)
        kept += [entry[3] for entry in batch(7)]
        offsets.flush()
        offsets.close()
        log.close()
        with CommitLog(folder) as log:
            assert log.repaired == ()
            assert values(log) == kept
        offsets = OffsetLog(tmp_path / "disk" / "offsets")
        assert offsets.position == 16
        offsets.close()


def test_a_log_on_a_full_disk_is_opened_and_read(tmp_path):
    with a_disk(tmp_path) as disk:
        folder = tmp_path / "disk" / "log"
        with CommitLog(folder, segment_bytes=15_000) as log:
            for number in range(5):
                log.append(batch(number))
            kept = values(log)
        disk.fill()
        with CommitLog(folder, segment_bytes=15_000) as log:
            assert values(log) == kept
            with pytest.raises(LogUnwritable, match="cannot compact the log"):
                log.compact(7)
            assert values(log) == kept
            disk.empty()
            log.compact(7)
            assert values(log) == kept[7:]


def test_a_folder_that_may_only_be_read_is_refused_and_can_be_looked_at(tmp_path):
    with a_disk(tmp_path):
        folder = tmp_path / "disk" / "log"
        with CommitLog(folder) as log:
            log.append(batch(1))
        run("mount", "-o", "remount,ro", str(tmp_path / "disk"))
        with pytest.raises(LogUnwritable, match="Read-only file system") as raised:
            CommitLog(folder)
        assert "mount the disk for writing" in raised.value.next_step
        with pytest.raises(LogUnwritable, match="Read-only file system"):
            CommitLog(tmp_path / "disk" / "another")
        assert len(values(CommitLog.look(folder))) == 3


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from harvest_lib.pipeline.commit_log import CommitLog, files
if os.getuid() == 0:
    os.setuid(65534)
for how in (CommitLog, CommitLog.look):
    try:
        how(Path(sys.argv[1]))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_no_rights_to_write_are_named():
    """As another user, for root may always write."""
    with tempfile.TemporaryDirectory() as folder:
        CommitLog(Path(folder) / "log").close()
        (Path(folder) / "log" / "log.json").chmod(0)
        for each in (folder, f"{folder}/log"):
            Path(each).chmod(0o555)
        command = [sys.executable, "-c", AS_ANOTHER_USER, f"{folder}/log"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.startswith("LogUnwritable cannot open the log")
    assert f"{folder}/log/lock: Permission denied" in said
    assert f"LogError the log cannot be read\n  evidence: {folder}/log/log.json: Permission denied" in said
    assert "give the user this runs as the right to write there" in said


@pytest.mark.parametrize("room", range(0, 12_093, 465))
def test_a_write_that_ends_at_any_byte_leaves_whole_entries(tmp_path, room):
    """A limit for the size of files ends a write in the middle, as a disk does that becomes full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with CommitLog(tmp_path / "log", sync_seconds=0.0) as log:
        log.append(batch(1))
        kept, size = values(log), next((tmp_path / "log").glob("*.log")).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, before[1]))
        try:
            with pytest.raises(LogUnwritable, match="File too large"):
                log.append(batch(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert values(log) == kept
        assert next((tmp_path / "log").glob("*.log")).stat().st_size == size
        log.append(batch(3))
        kept = values(log)
    with CommitLog(tmp_path / "log") as log:
        assert (log.repaired, values(log)) == ((), kept)


def test_after_segments_were_named_and_nobody_knows_whether_for_good_nothing_is_added(tmp_path, monkeypatch):
    """The old segment would be added to, and what is added there not be found again."""

    def fails(folder):
        raise OSError(5, "Input/output error")

    log = CommitLog(tmp_path / "log")
    log.append(batch(1))
    monkeypatch.setattr(files, "sync_folder", fails)  # the one after log.json was replaced
    with pytest.raises(LogUnwritable, match="Input/output error"):
        log.roll()
    with pytest.raises(LogUnwritable, match="it failed before"):
        log.append(batch(2))
    monkeypatch.undo()
    log.close()
    with CommitLog(tmp_path / "log") as log:
        assert log.end == 3
        assert log.append(batch(2)) == range(3, 6)


def test_after_a_failed_sync_nothing_is_promised_any_more(tmp_path, monkeypatch):
    """The system may report it once, and forget that something is not on the disk."""
    log = CommitLog(tmp_path / "log", sync_seconds=1e9)
    log.append(batch(1))
    log.sync()
    log.append(batch(2))
    real = os.fdatasync

    def fails(handle):
        monkeypatch.setattr(os, "fdatasync", real)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(LogUnwritable, match="Input/output error"):
        log.sync()
    for call in (log.sync, lambda: log.append(batch(3)), log.roll, lambda: log.compact(0)):
        with pytest.raises(LogUnwritable, match="it failed before"):
            call()
    assert log.synced == 3
    log.close()
    with CommitLog(tmp_path / "log") as log:
        assert log.end == log.synced == 6
