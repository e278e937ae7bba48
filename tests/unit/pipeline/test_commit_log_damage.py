"""Damage is found, named by file and byte, and never read; an operator may go on without it."""

import errno
import os
import random
from pathlib import Path

import pytest

from harvest_lib.errors import LogDamaged, LogError
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.commit_log.files import index_path, log_path, read_at

pytestmark = pytest.mark.quick

ENTRY_BYTES = 29 + 2 + 10
SEGMENT_ENTRIES = 12
BLOCK_ENTRIES = 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in ("segment", "log", "skipping"):
        monkeypatch.setattr(f"harvest_lib.pipeline.commit_log.{module}.BLOCK_BYTES", BLOCK_ENTRIES * ENTRY_BYTES)


@pytest.fixture
def folder(tmp_path):
    """A log of two closed segments and an active one, of three blocks each."""
    folder = tmp_path / "log"
    with CommitLog(folder, segment_bytes=SEGMENT_ENTRIES * ENTRY_BYTES) as log:
        log.append([(at, 1, b"k%d" % (at % 3), b"%010d" % at) for at in range(3 * SEGMENT_ENTRIES)])
        assert [len(each.blocks) for each in log._segments] == [3, 3, 3]
    return folder


def change(path, at, to=None):
    data = bytearray(path.read_bytes())
    data[at] = data[at] ^ 0x01 if to is None else to
    path.write_bytes(data)


def offsets(log, begin=0, end=None):
    return [entry.offset for entry in log.read(begin, end)]


@pytest.mark.parametrize("base", [0, 12, 24], ids=["first", "middle", "active"])
@pytest.mark.parametrize("byte", [0, 9, 20, 21, 24, 30, ENTRY_BYTES - 1, ENTRY_BYTES * 4 - 1])
def test_a_changed_byte_in_the_middle_of_a_segment_is_named(folder, base, byte):
    path = log_path(folder, base, 0)
    change(path, BLOCK_ENTRIES * ENTRY_BYTES + byte)
    damaged = range(base + 4, base + 8)
    with CommitLog(folder) as log:
        assert log.repaired == (), "what was synced is never cut"
        assert log.end == 36
        assert offsets(log, 0, base + 4) == list(range(base + 4)), "what is before it is read"
        assert offsets(log, base + 8) == list(range(base + 8, 36)), "and what is behind it"
        reading = log.read(0)
        read = []
        with pytest.raises(LogDamaged) as raised:
            read.extend(reading)
        assert [entry.offset for entry in read] == list(range(base + 4))
        error = raised.value
        assert (error.path, error.offsets) == (path, damaged)
        begin = BLOCK_ENTRIES * ENTRY_BYTES
        assert begin <= error.byte <= begin + byte
        assert f"{path}, byte {error.byte}" in str(error)
        assert f"harvest pipeline skip {damaged.start}" in error.next_step
        with pytest.raises(LogDamaged):
            list(CommitLog.look(folder).read(0))
        assert log.append([(1, 1, b"k0", b"more")]) == range(36, 37), "it may still be added to"


def test_any_changed_byte_of_any_file_is_found_or_makes_no_difference(folder):
    """Each byte of a closed log: reading is right, or an error."""
    dice, named = random.Random(5), set()
    for path in sorted(folder.glob("0*")):
        whole = path.read_bytes()
        for at in dice.sample(range(len(whole)), 120):
            changed = bytearray(whole)
            changed[at] ^= 1 << dice.randrange(8)
            path.write_bytes(changed)
            view = CommitLog.look(folder)
            try:
                found = [(entry.offset, entry.value) for entry in view.read(0)]
            except LogDamaged as error:
                named.add((path, error.path))
            else:
                assert found == [(number, b"%010d" % number) for number in range(36)]
        path.write_bytes(whole)
    assert named == {(path, path.with_suffix(".log")) for path in folder.glob("0*")}


@pytest.mark.parametrize("base", [0, 12, 24])
@pytest.mark.parametrize("left", [0, 1, BLOCK_ENTRIES * ENTRY_BYTES, SEGMENT_ENTRIES * ENTRY_BYTES - 1])
def test_a_file_that_is_too_short_is_named(folder, base, left):
    path = log_path(folder, base, 0)
    with path.open("r+b") as file:
        file.truncate(left)
    with CommitLog(folder) as log:
        assert log.repaired == ()
        assert log.end == 36
        with pytest.raises(LogDamaged, match="the file ends there") as raised:
            list(log.read(base + 8))
        assert raised.value.byte == max(left, 8 * ENTRY_BYTES) or left < 8 * ENTRY_BYTES
        assert log.append([(1, 1, b"k0", b"more")]) == range(36, 37)
        assert offsets(log, 36) == [36]


def test_a_disk_that_cannot_read_is_named(folder, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with CommitLog(folder) as log:
        monkeypatch.setattr(os, "pread", fails)
        with pytest.raises(LogDamaged, match="Input/output error") as raised:
            list(log.read(5))
        assert (raised.value.path, raised.value.byte) == (log_path(folder, 0, 0), 4 * ENTRY_BYTES)
        log.append([(1, 1, b"k0", b"not synced")])
        with pytest.raises(LogError, match="Input/output error"):
            CommitLog.look(folder)
        monkeypatch.undo()
        assert offsets(log, 24) == list(range(24, 37))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
def test_a_file_that_may_not_be_opened_is_not_damaged_and_costs_no_message(folder, monkeypatch, error):
    real = os.open

    def refuses(path, *arguments, **more):
        if str(path) == str(log_path(folder, 12, 0)):
            raise OSError(error, os.strerror(error), str(path))
        return real(path, *arguments, **more)

    with CommitLog(folder) as log:
        monkeypatch.setattr(os, "open", refuses)
        for call in (lambda: list(log.read(12)), lambda: log.skip(12), lambda: log.compact(36)):
            with pytest.raises(LogError, match=os.strerror(error)) as raised:
                call()
            assert not isinstance(raised.value, LogDamaged)
            assert str(log_path(folder, 12, 0)) in raised.value.evidence
        monkeypatch.undo()
        assert offsets(log) == list(range(36))


def test_an_index_that_may_not_be_read_is_not_taken_for_lost(folder, monkeypatch):
    real = Path.read_bytes

    def refuses(path):
        if path.suffix == ".index":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuses)
    for how in (CommitLog, CommitLog.look):
        with pytest.raises(LogError, match=r"(?s)cannot be read.*\.index: Permission denied") as raised:
            how(folder)
        assert not isinstance(raised.value, LogDamaged)


def test_a_missing_segment_is_named(folder):
    log_path(folder, 12, 0).unlink()
    with CommitLog(folder) as log:
        with pytest.raises(LogDamaged, match="the file is missing") as raised:
            list(log.read(13))
        assert raised.value.path == log_path(folder, 12, 0)
        assert offsets(log, 24) == list(range(24, 36))
        assert log.skip(13).given_up == range(12, 24)
        assert offsets(log) == [*range(12), *range(24, 36)]


def test_a_missing_index_of_a_closed_segment_is_damage(folder):
    index_path(folder, 12, 0).unlink()
    with CommitLog(folder) as log:
        for call in (lambda: list(log.read(12)), log.newest):
            with pytest.raises(LogDamaged, match="is damaged, and nothing vouches") as raised:
                call()
            assert raised.value.offsets == range(12, 24)
        skipped = log.skip(12)
        assert skipped.unchecked == range(12, 24)
        assert skipped.given_up == range(12, 12)
        assert offsets(log) == list(range(36))
        assert {key: entry.offset for key, entry in log.newest().items()} == {b"k0": 33, b"k1": 34, b"k2": 35}
    with CommitLog(folder) as log:
        assert offsets(log) == list(range(36))


def test_a_lost_index_of_the_active_segment_is_refused(folder):
    before = log_path(folder, 24, 0).read_bytes()
    index_path(folder, 24, 0).write_bytes(b"")
    for how in (CommitLog, CommitLog.look):
        with pytest.raises(LogDamaged, match="it is unknown where the log ends") as raised:
            how(folder)
        assert raised.value.path == index_path(folder, 24, 0)
    assert log_path(folder, 24, 0).read_bytes() == before


@pytest.mark.parametrize("base", [12, 24])
def test_a_damaged_record_of_an_index_costs_its_block_only(folder, base):
    path = index_path(folder, base, 0)
    data = path.read_bytes()
    second = data.index(b"\xc7LIx", data.index(b"\xc7LIx", 60) + 4)
    change(path, second + 30)
    with CommitLog(folder) as log:
        assert log.repaired == ()
        with pytest.raises(LogDamaged, match="nothing vouches") as raised:
            list(log.read(base))
        lost = raised.value.offsets
        assert len(lost) == BLOCK_ENTRIES
        assert log.skip(lost.start).unchecked == lost
        assert offsets(log) == list(range(36))


@pytest.mark.parametrize("base", [0, 12, 24])
def test_the_operator_skips_what_is_damaged_and_nothing_else(folder, base):
    path = log_path(folder, base, 0)
    change(path, 5 * ENTRY_BYTES + 7)
    whole = path.read_bytes()
    with CommitLog(folder) as log:
        skipped = log.skip(base + 5)
        assert (skipped.given_up, len(skipped.unchecked)) == (range(base + 4, base + 8), 0)
        left = [at for at in range(36) if at not in skipped.given_up]
        assert offsets(log) == left
        assert offsets(CommitLog.look(folder)) == left
        assert path.read_bytes() == whole, "what is damaged can still be looked at"
        log.append([(1, 1, b"k0", b"more")])
    with CommitLog(folder) as log:
        assert log.repaired == ()
        assert offsets(log) == [*left, 36]
        log.roll()
        log.compact(37)
        assert offsets(log) == [34, 35, 36]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_what_a_lost_length_says_is_not_read_before_it_is_plausible(tmp_path, monkeypatch, is_damaged):
    """The segment may have 1 GB after it."""
    folder, size, reads = tmp_path / "large", 20 * BLOCK_ENTRIES * ENTRY_BYTES, []
    with CommitLog(folder) as log:
        log.append([(0, 1, b"k", b"x" * size), (0, 1, b"k", b"x")])
        log.roll()
    index_path(folder, 0, 0).unlink()
    if is_damaged:
        change(log_path(folder, 0, 0), 11)  # the last byte of the message length

    def read(handle, size, at):
        reads.append(size)
        return read_at(handle, size, at)

    monkeypatch.setattr("harvest_lib.pipeline.commit_log.skipping.read_at", read)
    with CommitLog(folder) as log:
        skipped = log.skip(0)
        assert (len(skipped.given_up), len(skipped.unchecked)) == ((2, 0) if is_damaged else (0, 2))
    assert (max(reads) < size) == is_damaged


def test_damage_side_by_side_is_skipped_at_once(folder):
    change(log_path(folder, 0, 0), 1)
    change(log_path(folder, 0, 0), 5 * ENTRY_BYTES)
    with CommitLog(folder) as log:
        assert log.skip(0).given_up == range(8)
        assert (log.begin, offsets(log)) == (8, list(range(8, 36)))


def test_what_is_newest_after_a_skip_is_what_is_left(folder):
    change(log_path(folder, 24, 0), 9 * ENTRY_BYTES)
    with CommitLog(folder) as log:
        with pytest.raises(LogDamaged):
            log.newest()
        log.skip(34)
        expected = {b"k0": 30, b"k1": 31, b"k2": 29}
        assert {key: entry.offset for key, entry in log.newest().items()} == expected
    with CommitLog(folder) as log:
        assert {key: entry.offset for key, entry in log.newest().items()} == expected


def test_what_is_newest_and_damaged_is_not_forgotten_when_other_damage_is_skipped(folder):
    change(log_path(folder, 24, 0), 0)
    change(log_path(folder, 24, 0), 9 * ENTRY_BYTES)
    with CommitLog(folder) as log:
        assert log.skip(24).given_up == range(24, 28)
        with pytest.raises(LogDamaged) as raised:
            log.newest()
        assert raised.value.offsets == range(32, 36)


def test_what_fits_together_in_a_segment_without_index_is_taken_up_to_what_does_not(folder):
    index_path(folder, 12, 0).unlink()
    change(log_path(folder, 12, 0), 6 * ENTRY_BYTES + 11, to=0xFF)
    with CommitLog(folder) as log:
        skipped = log.skip(12)
        assert skipped.unchecked.start == 12
        assert skipped.given_up == range(skipped.unchecked.stop, 24)
        assert 16 <= skipped.unchecked.stop <= 18
        assert offsets(log) == [at for at in range(36) if at not in skipped.given_up]


@pytest.mark.parametrize("offset", [0, 12, 35])
def test_what_is_whole_is_not_skipped(folder, offset):
    before = {path: path.read_bytes() for path in folder.glob("0*")}
    with CommitLog(folder) as log, pytest.raises(LogError, match="nothing is damaged"):
        log.skip(offset)
    assert {path: path.read_bytes() for path in folder.glob("0*")} == before


def test_compaction_drops_nothing_that_no_index_vouches_for(folder):
    """It may be the newest of its key: nobody knows what keys there are."""
    index_path(folder, 12, 0).unlink()
    before = {path.name for path in folder.iterdir()}
    with CommitLog(folder) as log:
        log.roll()
        with pytest.raises(LogDamaged, match="nothing vouches") as raised:
            log.compact(36)
        assert raised.value.offsets == range(12, 24)
        assert {path.name for path in folder.iterdir()} >= before
        log.skip(12)
        log.compact(36)
        assert offsets(log) == [33, 34, 35]


def test_compaction_drops_nothing_for_a_newest_entry_that_is_damaged(folder):
    change(log_path(folder, 12, 0), 11 * ENTRY_BYTES)
    before = {path.name for path in folder.iterdir()}
    with CommitLog(folder) as log:
        with pytest.raises(LogDamaged):
            log.compact(36)
        assert {path.name for path in folder.iterdir()} == before
        assert offsets(log, 0, 20) == list(range(20))
