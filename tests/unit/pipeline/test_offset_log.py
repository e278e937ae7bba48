"""The offset of a writer: kept in time, and never too early."""

from contextlib import closing

import pytest
from support.log_format import decode

from harvest_lib.errors import LogDamaged
from harvest_lib.pipeline.offset_log import OffsetLog

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "offsets"


def kept(folder):
    """Return position and offsets that a folder has."""
    with closing(OffsetLog(folder)) as offsets:
        return offsets.position, offsets.by_namespace


def test_a_new_writer_begins_at_the_beginning(folder):
    offsets = OffsetLog(folder)
    assert (offsets.position, offsets.by_namespace) == (0, {})
    offsets.flush()
    offsets.close()
    assert decode(next(folder.glob("*.log")).read_bytes()) == []


def test_the_position_is_that_of_the_next_message(folder):
    offsets = OffsetLog(folder)
    offsets.acknowledge(b"A", 0)
    assert offsets.position == 1
    offsets.acknowledge(b"B", 7)
    offsets.acknowledge(b"A", 3)
    assert (offsets.position, offsets.by_namespace) == (8, {b"A": 3, b"B": 7})
    offsets.acknowledge(b"B", 6)
    assert (offsets.position, offsets.by_namespace) == (8, {b"A": 3, b"B": 7}), "none steps back"
    offsets.close()
    assert kept(folder) == (8, {b"A": 3, b"B": 7})


def test_normal_operations(folder):
    """The document's offset log of its writers c0 and c1, at 12 and 13 of 15, and at 15 once they resumed."""
    flushed = {"c0": [1, 4, 6, 7, 10, 12], "c1": [4, 5, 7, 13]}
    for name, steps in flushed.items():
        offsets = OffsetLog(folder / name)
        for step in steps:
            offsets.acknowledge(b"A", step)
            offsets.flush()
        offsets.close()
        entries = decode(next((folder / name).glob("*.log")).read_bytes())
        assert [int.from_bytes(entry["data"], "big") for entry in entries] == steps
        assert [entry["offset"] for entry in entries] == list(range(len(steps)))
        offsets = OffsetLog(folder / name)
        assert offsets.position == steps[-1] + 1
        offsets.acknowledge(b"A", 15)
        offsets.close()
        assert kept(folder / name) == (16, {b"A": 15})


def test_of_what_was_acknowledged_the_newest_is_flushed_and_once(folder):
    offsets = OffsetLog(folder)
    path = next(folder.glob("*.log"))
    offsets.acknowledge(b"A", 1)
    offsets.acknowledge(b"A", 2)
    assert path.read_bytes() == b""
    offsets.flush()
    assert [entry["data"][-1] for entry in decode(path.read_bytes())] == [2], "the newest, once"
    offsets.acknowledge(b"A", 2)
    offsets.close()
    assert len(decode(path.read_bytes())) == 1


def test_the_commit_log_is_synced_before_any_offset_is_kept(folder):
    path, seen = [], []
    offsets = OffsetLog(folder, sync_log=lambda: seen.append(path[0].read_bytes()))
    path.append(next(folder.glob("*.log")))
    offsets.flush()
    assert seen == []
    offsets.acknowledge(b"A", 1)
    offsets.flush()
    assert seen == [b""]
    offsets.close()


def test_offsets_whose_messages_cannot_be_kept_are_not(folder):
    def failing():
        raise OSError("the disk is gone")

    offsets = OffsetLog(folder, sync_log=failing)
    offsets.acknowledge(b"A", 1)
    offsets.acknowledge(b"B", 2)
    with pytest.raises(OSError, match="gone"):
        offsets.flush()
    offsets.acknowledge(b"A", 3)
    assert (offsets.position, offsets.by_namespace) == (4, {b"A": 3, b"B": 2})
    assert next(folder.glob("*.log")).read_bytes() == b""
    offsets._sync_log = None
    offsets.close()
    assert kept(folder) == (4, {b"A": 3, b"B": 2}), "what could not be flushed was not forgotten"


def test_it_stays_small_by_itself(folder):
    offsets = OffsetLog(folder, segment_bytes=200)
    for number in range(60):
        offsets.acknowledge(b"AB"[number % 2 : number % 2 + 1], number)
        offsets.flush()
        assert sum(path.stat().st_size for path in folder.glob("*.log")) < 600
    offsets.close()
    assert kept(folder) == (60, {b"A": 58, b"B": 59})


def test_damage_is_named_and_the_folder_is_let_go(folder):
    offsets = OffsetLog(folder)
    offsets.acknowledge(b"A", 9)
    offsets.close()
    path = next(folder.glob("*.log"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x07")
    with pytest.raises(LogDamaged, match="how far a writer was is damaged") as raised:
        OffsetLog(folder)
    assert raised.value.path == path
    assert "gets all again" in raised.value.next_step
    path.write_bytes(whole)
    assert kept(folder) == (10, {b"A": 9})
