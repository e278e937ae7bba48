"""Promises of a commit log while nothing goes wrong, and its errors for misuse."""

import json
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from harvest_lib.errors import LogDamaged, LogError, LogInUse, LogTooNew, OffsetBeyondLog
from harvest_lib.pipeline.commit_log import CommitLog, LogEntry, manifest
from harvest_lib.pipeline.commit_log.segment import BLOCK_BYTES

pytestmark = pytest.mark.quick

ENTRY_BYTES = 29


def entries(count, *, keys="AB", size=1):
    return [(number, 1, keys[number % len(keys)].encode(), b"x" * size) for number in range(count)]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pipeline" / "log"


def test_offsets_are_counted_from_the_beginning_and_go_on(folder):
    with CommitLog(folder) as log:
        assert (log.begin, log.end) == (0, 0)
        assert list(log.read(0)) == []
        assert log.append([]) == range(0)
        assert log.append(entries(3)) == range(3)
        assert log.append(iter(entries(2))) == range(3, 5)
    with CommitLog(folder) as log:
        assert (log.begin, log.end, log.synced) == (0, 5, 5)
        assert log.append(entries(1)) == range(5, 6)
        assert [entry.offset for entry in log.read(0)] == [0, 1, 2, 3, 4, 5]


def test_any_range_is_read(folder):
    with CommitLog(folder, segment_bytes=10 * (ENTRY_BYTES + 2)) as log:
        log.append(entries(35))
        for begin in range(36):
            for end in (*range(begin, 38), None):
                expected = list(range(begin, 35 if end is None else min(end, 35)))
                assert [entry.offset for entry in log.read(begin, end)] == expected


def test_a_segment_of_many_small_appends_ends_before_its_index_is_large(folder, monkeypatch):
    """An index is in memory as a whole when the log is opened."""
    monkeypatch.setattr("harvest_lib.pipeline.commit_log.log.INDEX_BYTES", 10_000)
    with CommitLog(folder, sync_seconds=3600.0) as log:
        for entry in entries(1_000):
            log.append([entry])
        assert log.segments > 5
        assert max(path.stat().st_size for path in folder.glob("*.index")) < 10_200
    with CommitLog(folder) as log:
        assert [entry.offset for entry in log.read(0)] == list(range(1_000))


def test_an_index_is_not_decoded_as_a_whole(folder):
    with CommitLog(folder, sync_seconds=3600.0) as log:
        for number, entry in enumerate(entries(10_000)):
            log.append([entry])
            if number % 100 == 0:
                log.sync()
    index_bytes = next(folder.glob("*.index")).stat().st_size
    tracemalloc.start()
    try:
        view = CommitLog.look(folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert view.end == 10_000
    assert peak < 2 * index_bytes


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 60, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_entries_of_any_size_are_read(folder, size):
    with CommitLog(folder, segment_bytes=1 << 20) as log:
        appended = entries(12, size=size)
        log.append(appended)
        log.append(appended)
        assert [entry[1:] for entry in log.read(0)] == appended * 2
        assert list(log.read(7, 8)) == [LogEntry(7, *appended[7])]
    with CommitLog(folder) as log:
        assert [entry[1:] for entry in log.read(0)] == appended * 2


def test_a_segment_has_its_size_at_most_or_one_entry(folder):
    with CommitLog(folder, segment_bytes=100) as log:
        log.append([(0, 0, b"", b"x" * size) for size in (71, 1, 500, 42, 0, 0, 0, 0)])
        sizes = [segment.path.stat().st_size for segment in log._segments]
    assert sizes == [100, 30, 529, 71 + 29, 29 * 3]


def test_what_was_appended_is_synced_when_it_is_due(folder):
    now = [100.0]
    with CommitLog(folder, sync_seconds=1.0, clock=lambda: now[0]) as log:
        now[0] += 50
        log.append(entries(1))
        assert log.synced == 0, "it was appended just now"
        now[0] += 0.9
        log.append(entries(1))
        log.sync_if_due()
        assert log.synced == 0
        now[0] += 0.1
        log.append(entries(1))
        assert log.synced == 3
        now[0] += 5
        log.sync_if_due()
        log.append(entries(1))
        assert log.synced == 3
        log.sync()
        assert log.synced == 4


def test_with_no_interval_each_append_is_on_the_disk(folder):
    with CommitLog(folder, sync_seconds=0.0) as log:
        log.append(entries(1))
        assert log.synced == 1


def test_closing_syncs_and_is_idempotent(folder):
    log = CommitLog(folder, sync_seconds=1e9)
    log.append(entries(3))
    log.close()
    assert log.synced == 3
    log.close()
    for call in (lambda: log.append(entries(1)), log.sync, log.roll, lambda: log.compact(0)):
        with pytest.raises(LogError, match="closed"):
            call()


def test_what_the_entries_raise_comes_out_and_leaves_whole_entries(folder):
    def failing():
        yield from entries(3, size=BLOCK_BYTES // 2)
        raise RuntimeError("no more")

    with CommitLog(folder) as log:
        with pytest.raises(RuntimeError, match="no more"):
            log.append(failing())
        kept = list(log.read(0))
        assert len(kept) == log.end
        assert log.append(entries(1)) == range(log.end - 1, log.end)


# -- who else is there


def test_others_look_at_it_while_it_is_written(folder):
    with CommitLog(folder, segment_bytes=200) as log:
        log.append(entries(10))
        view = CommitLog.look(folder)
        log.append(entries(10))
        assert [entry.offset for entry in view.read(0)] == list(range(10))
        assert (view.begin, view.end) == (0, 10)
        assert CommitLog.look(folder).end == 20


def test_one_who_looks_goes_on_when_segments_are_compacted_meanwhile(folder):
    with CommitLog(folder, segment_bytes=5 * (ENTRY_BYTES + 2)) as log:
        log.append(entries(40))
        view = CommitLog.look(folder)
        reading = view.read(0)
        assert [next(reading).offset for _ in range(2)] == [0, 1]
        log.compact(30)
        assert [entry.offset for entry in reading] == [2, 3, 4, *range(30, 40)]
        assert list(view.read(0)) == list(log.read(0))


def test_the_newest_are_found_by_one_who_looked_before_they_were_compacted(folder):
    with CommitLog(folder) as log:
        log.append(entries(4))
        view = CommitLog.look(folder)
        log.append(entries(4))
        log.roll()
        log.compact(8)
        assert {key: entry.offset for key, entry in view.newest().items()} == {b"A": 6, b"B": 7}


def test_one_who_looks_just_as_segments_are_replaced_looks_again(folder, monkeypatch):
    with CommitLog(folder) as log:
        log.append(entries(4))
        read, before = manifest.read, manifest.read(folder)
        log.roll()
        log.compact(4)
        answers = [before]
        monkeypatch.setattr(manifest, "read", lambda folder: answers.pop() if answers else read(folder))
        assert [entry.offset for entry in CommitLog.look(folder).read(0)] == [2, 3]
        assert answers == []


def test_looking_where_there_is_no_log_says_so(tmp_path):
    with pytest.raises(LogError, match="there is no commit log"):
        CommitLog.look(tmp_path)
    with pytest.raises(LogError, match="there is no commit log"):
        CommitLog.look(tmp_path / "nowhere")


HOLD = """
import sys
from pathlib import Path
from harvest_lib.pipeline.commit_log import CommitLog
log = CommitLog(Path(sys.argv[1]))
log.append([(1, 1, b"A", b"theirs")])
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_cannot_have_one_folder_and_a_killed_one_leaves_it(folder):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LogInUse) as raised:
            CommitLog(folder)
        assert f"process {other.pid}" in raised.value.evidence
        assert [entry.value for entry in CommitLog.look(folder).read(0)] == [b"theirs"]
        other.kill()
        other.wait()
    with CommitLog(folder) as log:
        assert [entry.value for entry in log.read(0)] == [b"theirs"]


def test_threads_read_while_one_appends_and_another_compacts(folder):
    batches, done, found = 150, threading.Event(), []

    def read():
        at, seen = 0, []
        while not done.is_set() or at < log.end:
            end = log.end
            for entry in log.read(at, end):
                seen.append(entry)
            at = end
        found.append(seen)

    def compact():
        while not done.is_set():
            log.compact(log.end // 2)

    with CommitLog(folder, segment_bytes=2_000, sync_seconds=1e9) as log:
        threads = [threading.Thread(target=read) for _ in range(2)] + [threading.Thread(target=compact)]
        for thread in threads:
            thread.start()
        written = []
        for number in range(batches):
            batch = [(number, 1, b"ABC"[at : at + 1], b"%d" % number) for at in range(3)]
            first = log.append(batch).start
            written += [LogEntry(first + at, *entry) for at, entry in enumerate(batch)]
        done.set()
        for thread in threads:
            thread.join()
        assert len(found) == 2
        for seen in found:  # entries that a compaction overtook are left out, and all others are there once, in order
            assert set(seen) <= set(written)
            assert [entry.offset for entry in seen] == sorted({entry.offset for entry in seen})
            assert set(seen) >= {entry for entry in written if entry.offset >= len(written) - 3}
        log.compact(log.end)
        assert log.newest() == {entry.key: entry for entry in written}


# -- bad input


def test_an_offset_beyond_the_log_is_refused(folder):
    with CommitLog(folder) as log:
        log.append(entries(3))
        assert list(log.read(3)) == []
        with pytest.raises(OffsetBeyondLog, match="ends at offset 3: there is no offset 4") as raised:
            log.read(4)
        assert "next step" in str(raised.value)
        with pytest.raises(OffsetBeyondLog, match="ends at offset 3"):
            log.compact(4)
        with pytest.raises(OffsetBeyondLog, match="ends at offset 3"):
            log.skip(3)
        assert [entry.offset for entry in log.read(0)] == [0, 1, 2]


def test_a_version_from_the_future_is_refused_and_left_alone(folder):
    with CommitLog(folder) as log:
        log.append(entries(3))
    path = folder / "log.json"
    path.write_text(json.dumps({"version": 2, "something": "else"}))
    before = {each: each.read_bytes() for each in folder.iterdir() if each.name != "lock"}
    for how in (CommitLog, CommitLog.look):
        with pytest.raises(LogTooNew, match="format is 2, the latest known here 1"):
            how(folder)
    assert {each: each.read_bytes() for each in folder.iterdir() if each.name != "lock"} == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "active": 0, "closed": []}'])
def test_a_damaged_list_of_segments_is_refused(folder, content):
    with CommitLog(folder) as log:
        log.append(entries(3))
    (folder / "log.json").write_bytes(content)
    for how in (CommitLog, CommitLog.look):
        with pytest.raises(LogDamaged, match="names them is damaged") as raised:
            how(folder)
        assert raised.value.path == folder / "log.json"


def test_a_missing_list_of_segments_is_not_taken_for_a_new_log(folder):
    with CommitLog(folder) as log:
        log.append(entries(3))
    (folder / "log.json").unlink()
    with pytest.raises(LogDamaged, match="missing, and there are segments"):
        CommitLog(folder)
    assert len(list(folder.glob("*.log"))) == 1


def test_an_old_list_of_segments_is_refused_and_nothing_it_does_not_know_is_removed(folder):
    with CommitLog(folder, segment_bytes=100) as log:
        log.append(entries(3))
        old = (folder / "log.json").read_bytes()
        log.append(entries(9))
    (folder / "log.json").write_bytes(old)
    before = set(folder.iterdir())
    with pytest.raises(LogDamaged, match="there are messages it does not know of"):
        CommitLog(folder)
    assert set(folder.iterdir()) == before


def test_an_old_list_of_segments_costs_no_segment_that_was_compacted_since(folder):
    with CommitLog(folder, segment_bytes=200) as log:
        log.append(entries(20))
        old = (folder / "log.json").read_bytes()
        log.compact(10)
        expected, new = list(log.read(0)), (folder / "log.json").read_bytes()
    (folder / "log.json").write_bytes(old)
    with CommitLog(folder) as log, pytest.raises(LogDamaged, match="the file is missing"):
        list(log.read(0))
    (folder / "log.json").write_bytes(new)
    with CommitLog(folder) as log:
        assert list(log.read(0)) == expected


def test_a_log_that_could_not_be_opened_is_let_go(folder):
    CommitLog(folder).close()
    content = (folder / "log.json").read_bytes()
    (folder / "log.json").write_bytes(b"")
    with pytest.raises(LogDamaged):
        CommitLog(folder)
    (folder / "log.json").write_bytes(content)
    CommitLog(folder).close()


def test_files_of_others_are_left_alone(folder):
    CommitLog(folder).close()
    (folder / "notes.log").write_text("mine")
    Path(folder / "00000000000000000000.0.logbook").write_text("mine")
    CommitLog(folder).close()
    assert (folder / "notes.log").exists()
    assert (folder / "00000000000000000000.0.logbook").exists()
