"""Compaction: what survives, that it happens at one moment, and that nobody has to wait for it."""

import tracemalloc

import pytest
from support.log_format import decode

from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.commit_log.files import log_path
from harvest_lib.pipeline.commit_log.segment import BLOCK_BYTES
from harvest_lib.pipeline.offset_log import OffsetLog

pytestmark = pytest.mark.quick

OLD = "AABBAABBCACBAACBA"
ACTIVE = "AABBAABBCAC"
ENTRY_BYTES = 31


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "log"


def small_blocks(monkeypatch, size):
    for module in ("segment", "log"):
        monkeypatch.setattr(f"harvest_lib.pipeline.commit_log.{module}.BLOCK_BYTES", size)


def appended(log, keys):
    log.append([(number, 1, key.encode(), b"X") for number, key in enumerate(keys)])


def found(log):
    return [(entry.offset, entry.key.decode()) for entry in log.read(0)]


def test_entries_that_remain_are_not_held_in_memory_together(folder):
    """A segment may have 1 GB, and a pipeline 256 MB."""
    size, entries = 100_000, 200
    with CommitLog(folder) as log:
        log.append([(0, 1, b"again", b"x")])
        for number in range(entries):
            log.append([(1 + number, 1, str(number).encode(), b"x" * size)])
        log.append([(entries + 1, 1, b"again", b"x")])
        log.roll()
        tracemalloc.start()
        try:
            log.compact(entries + 2)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [entry.offset for entry in log.read(0)] == list(range(1, entries + 2))
    assert peak < 16 * BLOCK_BYTES < size * entries


def test_log_compaction(folder, tmp_path):
    """The document's scenario: an old log of messages 0 to 16, an active one of 17 to 27, and a writer who is at 27."""
    with CommitLog(folder, segment_bytes=len(OLD) * ENTRY_BYTES) as log:
        appended(log, OLD + ACTIVE)
        offsets = OffsetLog(tmp_path / "c0", sync_log=log.sync)
        steps = [
            ("A", 1),
            ("A", 8),
            ("B", 1),
            ("C", 3),
            ("A", 13),
            ("B", 12),
            ("C", 9),
            ("A", 26),
            ("B", 23),
            ("C", 27),
        ]
        for key, offset in steps:
            offsets.acknowledge(key.encode(), offset)
            offsets.flush()
        assert offsets.position == 28
        log.compact(offsets.position)
        offsets.compact()
        assert found(log)[:3] == [(14, "C"), (15, "B"), (16, "A")]
        assert found(log)[3:] == [(17 + number, key) for number, key in enumerate(ACTIVE)]
        old = decode(log_path(folder, 0, 1).read_bytes())
        assert [(entry["offset"], entry["key"]) for entry in old] == [(14, b"C"), (15, b"B"), (16, b"A")]
        assert not log_path(folder, 0, 0).exists()
        active = decode(log_path(folder, 17, 0).read_bytes())
        assert [entry["offset"] for entry in active] == list(range(17, 28))
        kept = [entry for path in sorted((tmp_path / "c0").glob("*.log")) for entry in decode(path.read_bytes())]
        assert [(entry["key"], int.from_bytes(entry["data"], "big")) for entry in kept] == [
            (b"A", 26),
            (b"B", 23),
            (b"C", 27),
        ]
        offsets.close()


def test_the_active_segment_is_never_compacted(folder):
    with CommitLog(folder) as log:
        appended(log, OLD)
        before = log_path(folder, 0, 0).stat()
        assert log.compact(17).segments == 0
        assert log_path(folder, 0, 0).stat() == before
        assert len(found(log)) == 17


@pytest.mark.parametrize("block_bytes", [1 << 17, 100])
@pytest.mark.parametrize("up_to", range(18))
def test_what_a_writer_has_not_passed_stays(folder, monkeypatch, block_bytes, up_to):
    small_blocks(monkeypatch, block_bytes)
    with CommitLog(folder) as log:
        appended(log, OLD)
        log.roll()
        log.compact(up_to)
        expected = [(at, key) for at, key in enumerate(OLD) if at >= up_to or at in {14, 15, 16}]
        assert found(log) == expected
        assert log.compact(up_to).segments == 0
    with CommitLog(folder) as log:
        assert found(log) == expected
        assert {key.decode(): entry.offset for key, entry in log.newest().items()} == {"C": 14, "B": 15, "A": 16}


def test_over_several_segments_the_newest_of_each_key_is_kept_once(folder):
    with CommitLog(folder, segment_bytes=3 * ENTRY_BYTES) as log:
        appended(log, "ABCAACDAAAAA")
        log.roll()
        done = log.compact(12)
        assert found(log) == [(1, "B"), (5, "C"), (6, "D"), (11, "A")]
        assert done.freed_bytes == 8 * ENTRY_BYTES
        assert len(list(folder.glob("*.log"))) == 5, "one of each segment with something left, and the active one"
        appended(log, "BCD")
        log.roll()
        log.compact(15)
        assert found(log) == [(11, "A"), (12, "B"), (13, "C"), (14, "D")]
        assert len(list(folder.glob("*.log"))) == 3
        assert log.begin == 11


def test_what_is_compacted_already_is_not_written_again(folder):
    with CommitLog(folder, segment_bytes=5 * ENTRY_BYTES) as log:
        appended(log, OLD + ACTIVE)
        assert log.compact(20).segments > 0
        before = {path: path.stat().st_ino for path in folder.iterdir()}
        again = log.compact(20)
        assert (again.segments, again.freed_bytes) == (0, 0)
        assert {path: path.stat().st_ino for path in folder.iterdir()} == before


@pytest.mark.parametrize("up_to", [10, 28])
def test_a_compaction_that_is_not_to_go_on_changes_nothing_by_halves(folder, monkeypatch, up_to):
    small_blocks(monkeypatch, 2 * ENTRY_BYTES)
    with CommitLog(folder, segment_bytes=9 * ENTRY_BYTES) as log:
        appended(log, OLD + ACTIVE)
        log.roll()
        every = found(log)
        for asked in range(100):
            answers = iter([True] * asked)
            log.compact(up_to, going_on=lambda answers=answers: next(answers, False))
            left = found(log)
            assert set(left) <= set(every)
            assert set(left) >= {each for each in every if each[0] >= up_to}
            assert {path.name for path in folder.glob("0*")} == {
                path.name for each in log._segments for path in (each.path, each.index)
            }
            if next(answers, None):
                break
        kept = {max(at for at, key in every if key == each) for each in "ABC"}
        assert left == [each for each in every if each[0] >= up_to or each[0] in kept]
    assert asked > 5


def test_who_reads_goes_on_reading(folder):
    with CommitLog(folder, segment_bytes=5 * ENTRY_BYTES) as log:
        appended(log, OLD + ACTIVE)
        reading = log.read(0)
        seen = [next(reading).offset for _ in range(7)]
        log.compact(28)
        seen += [entry.offset for entry in reading]
        assert seen[:7] == list(range(7))
        assert seen == sorted(set(seen))
        assert set(seen) >= {offset for offset, _ in found(log)}
