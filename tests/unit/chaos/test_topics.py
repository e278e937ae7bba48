"""A topic that is deleted and recreated under fire: the notes of it, and the records no longer waited for."""

from types import SimpleNamespace

import pytest
from support.written_history import Pen, written

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import StackError
from infra.chaos import following
from infra.chaos.faults.topics import acknowledged
from infra.chaos.following import Following
from infra.chaos.history.writer import HistoryWriter
from infra.chaos.run import judged
from infra.chaos.system import SystemMode

pytestmark = pytest.mark.quick

WAY = SystemMode(source="snapshot", delivery="barrier")


def write(pen, file):
    with HistoryWriter(file) as history:
        for event in pen.events:
            history.append(event)


def event(name):
    return written(name).event


def test_what_was_acknowledged_by_the_time_is_found_in_all_histories(tmp_path):
    write(Pen().produce("a1 b1").acknowledge("a1", 0).acknowledge("b1", end="fail"), tmp_path / "harvester-101.jsonl")
    write(Pen().produce("c1 d1").acknowledge("c1", 1).wait(600).acknowledge("d1", 2), tmp_path / "harvester-201.jsonl")
    write(Pen().produce("e1").acknowledge("e1", 3), tmp_path / "other.jsonl")
    assert acknowledged(tmp_path, since=0.0, by=500.0) == {event("a1"), event("c1")}
    assert acknowledged(tmp_path, since=500.0, by=1000.0) == {event("d1")}


def test_what_went_with_the_topic_does_not_count_as_committed(tmp_path):
    pen = Pen().write("a1").harvest("a1").poll("a1").write("a2").harvest("a2").recreate("a2", since=0.01)
    write(pen.write("a3").harvest("a3").assign(0).poll("a3"), tmp_path / "all.jsonl")
    committed, _, verdict = judged(tmp_path, WAY)
    assert (committed, verdict.ok) == (2, True)


def test_all_that_is_answered_is_waited_for_and_nothing_later(monkeypatch):
    monkeypatch.setattr(following, "_CAUGHT_UP_SECONDS", 0.0)
    reader = SimpleNamespace(seen={"a"}, has_read=True)
    follows = Following(reader=reader, answered={"a", "b"})
    with pytest.raises(StackError, match="were not read"):
        follows.catch_up()
    reader.seen.add("b")
    before = boot_seconds()
    since = follows.catch_up()
    assert before <= since <= boot_seconds()

    assert follows.unread(["c", "b", "d"]) == ("c", "d")


def test_a_topic_is_not_deleted_before_anything_was_read_of_it(monkeypatch):
    monkeypatch.setattr(following, "_CAUGHT_UP_SECONDS", 0.0)
    with pytest.raises(StackError, match="nothing was read"):
        Following(reader=SimpleNamespace(seen=set(), has_read=False), answered=set()).catch_up()
