"""A full disk, and a folder that may only be read: the pipeline stops with a clear error, and goes on afterwards."""

import logging
import re
from contextlib import suppress
from pathlib import Path

import pytest
from support.machine import require
from support.pipelines import Running, Script, Taking, anything, declared, message, messages, run
from support.waiting import eventually

from harvest_lib.errors import LogDamaged, LogUnwritable, OffsetBeyondLog, PipelineError
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.folder import commit_folder, offsets_folder
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.settings import CommitLogSettings
from infra.chaos import namespaces
from infra.chaos.disk import Disk

pytestmark = pytest.mark.quick


@pytest.fixture
def disk(tmp_path):
    """A disk of the test's own, at `disk` in its folder."""
    require(namespaces.mounts_lacking(), "mount")
    with namespaces.own_mounts():
        yield Disk(tmp_path / "disk")
        # A thread that was joined may still be about to end, and nobody leaves mounts that a thread of his is in.
        eventually(lambda: len(with_our_mounts()) == 1, "threads are gone")


def with_our_mounts():
    """Return the threads that have the mounts of this one."""
    ours, found = Path("/proc/thread-self/ns/mnt").readlink(), []
    for each in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if (each / "ns" / "mnt").readlink() == ours:
                found.append(each.name)
    return found


def large(count, first=0):
    return [message("A", number, text="x" * 1_000) for number in range(first, first + count)]


def test_a_full_disk_stops_the_pipeline_and_nothing_is_lost_when_there_is_room_again(disk, tmp_path):
    folder, c0, c1 = tmp_path / "disk" / "flights", Taking(), Taking()
    declaration = declared(folder, Script(large(50_000), batch=20, ends=False), {"c0": c0, "c1": c1})
    running = Running(declaration)
    eventually(lambda: len(c0.offsets) > 100)
    disk.fill()
    running.wait()
    assert isinstance(running.failure, LogUnwritable)
    assert "No space left on device" in str(running.failure)
    with pytest.raises((LogUnwritable, PipelineError), match="No space left"):
        run(folder, Script(large(10)), {"new": Taking()})
    standing = operations.pipeline_status(declaration)
    assert all(each.position <= len(c0.offsets) for each in standing.writers), "looking needs no room"
    disk.empty()
    total = standing.end + 100
    again0, again1 = Taking(), Taking()
    run(folder, Script(large(total)), {"c0": again0, "c1": again1})
    for before, after in ((c0, again0), (c1, again1)):
        assert sorted({*before.offsets, *after.offsets}) == list(range(total))
        assert after.offsets == list(range(after.offsets[0], total))
        assert after.offsets[0] <= len(before.offsets)


def test_a_folder_that_may_only_be_read_is_told_before_anything_is_read_or_written(disk, tmp_path):
    folder, c0 = tmp_path / "disk" / "flights", Taking()
    run(folder, Script(messages("AAAA")), {"c0": c0})
    namespaces.run("mount", "-o", "remount,ro", str(tmp_path / "disk"))
    reader = Script(messages("AAAAAA"))
    with pytest.raises((LogUnwritable, PipelineError), match=r"(?i)read-only"):
        run(folder, reader, {"c0": c0})
    assert not reader.last
    assert [each.data["n"] for each in operations.messages(declared(folder, reader, {"c0": c0}), 2, 3)] == [2, 3]
    namespaces.run("mount", "-o", "remount,rw", str(tmp_path / "disk"))
    run(folder, reader, {"c0": c0})
    assert c0.numbers == list(range(6))


def test_damage_is_named_with_file_and_byte_and_an_operator_may_skip_it(tmp_path):
    stuck, total = Taking(anything), 400
    log = CommitLogSettings(segment_bytes=20_000, compact_seconds=0.0)
    declaration = declared(tmp_path, Script(large(total), batch=total), {"c0": stuck}, log=log)
    with pytest.raises(PipelineError):
        Pipeline(declaration).run()
    file = sorted(commit_folder(tmp_path).glob("*.log"))[5]
    with file.open("r+b") as segment:
        segment.seek(5_000)
        segment.write(b"?")
    stuck.refuses = lambda batch: False
    with pytest.raises(LogDamaged) as damaged:
        Pipeline(declaration).run()
    assert str(file) in str(damaged.value)
    offset = int(re.search(r"harvest pipeline skip (\d+)", str(damaged.value))[1])
    assert offset == len(stuck.offsets)
    skipped = operations.skip_damage(declaration, offset)
    assert offset in skipped.given_up
    Pipeline(declaration).run()
    assert stuck.offsets == [each for each in range(total) if each not in skipped.given_up]


def test_a_pipeline_goes_on_where_the_newest_messages_were_given_up(tmp_path):
    c0 = Taking(anything)
    with pytest.raises(PipelineError):
        run(tmp_path, Script(messages("AAAA"), batch=2), {"c0": c0})
    file = next(commit_folder(tmp_path).glob("*.log"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    given_up = operations.skip_damage(declared(tmp_path, Script(), {"c0": c0}), 3).given_up
    for given in ([], messages("AAAAA")):
        run(tmp_path, Script(given), {"c0": c0})
    assert c0.numbers[: given_up.start] == list(range(given_up.start))
    assert c0.numbers[given_up.start :] == list(range(given_up.start, 5)), "the reader sent them down again"
    assert c0.offsets[given_up.start :] == list(range(4, 4 + 5 - given_up.start))


def test_what_is_cut_off_torn_files_is_told(tmp_path, caplog):
    run(tmp_path, Script(messages("AAAA")), {"c0": Taking()})
    torn = [next(folder.glob("*.log")) for folder in (commit_folder(tmp_path), offsets_folder(tmp_path, "c0"))]
    sizes = [file.stat().st_size for file in torn]
    for file in torn:
        with file.open("ab") as segment:
            segment.write(b"half an entry")
    with caplog.at_level(logging.WARNING):
        run(tmp_path, Script(), {"c0": Taking()})
    reported = [each for each in caplog.records if each.message == "log_repaired"]
    assert [(each.file, each.byte, each.cut_bytes) for each in reported] == [
        (str(file), size, 13) for file, size in zip(torn, sizes, strict=True)
    ]
    assert reported[0].goes_on_at == 4


@pytest.mark.parametrize(
    ("mode", "data", "why"), [(0b11101, b"{}", "mode byte 29"), (1, b"[]", "list"), (1, b"{", "not extended JSON")]
)
def test_an_entry_that_holds_no_message_is_told_and_may_be_acknowledged_unsent(tmp_path, mode, data, why):
    with CommitLog(commit_folder(tmp_path)) as log:
        log.append([(1, mode, b"A", data)])
        log.append(encoded([message("A", 1)]))
    reader, c0 = Script(messages("AAA")), Taking()
    declaration = declared(tmp_path, reader, {"c0": c0})
    with pytest.raises(PipelineError, match=rf"(?s)offset 0: it holds no message.*{why}.*ack 0 --without-sending"):
        Pipeline(declaration).run()
    with pytest.raises(PipelineError, match=rf"(?s)offset 0 of the log holds no message.*{why}"):
        list(operations.messages(declaration, 0, 1))
    operations.acknowledge(declaration, 0)
    Pipeline(declaration).run()
    assert c0.offsets == [1, 2]


def test_an_offset_beyond_the_log_is_told_and_nothing_is_sent(tmp_path):
    run(tmp_path, Script(messages("AAAA")), {"c0": Taking()})
    commit_folder(tmp_path).rename(tmp_path / "lost")
    reader, c0 = Script(messages("AA")), Taking()
    with pytest.raises(OffsetBeyondLog, match="acknowledged up to offset 3, and the log ends at 0"):
        run(tmp_path, reader, {"new": c0, "c0": c0})
    assert not reader.last
    assert not c0.writes
    assert not c0.closed, "no writer was opened"
    offsets_folder(tmp_path, "c0").rename(tmp_path / "old-offsets")
    run(tmp_path, reader, {"c0": c0})
    assert c0.offsets == [0, 1]
