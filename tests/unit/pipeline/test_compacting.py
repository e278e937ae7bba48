"""Compaction of a pipeline's commit log, and the part left there for writers that are not at work just now."""

import logging
import shutil
import threading

import pytest
from support.pipelines import Running, Script, Taking, declared, messages
from support.waiting import eventually

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.commit_log import Compacted
from harvest_lib.pipeline.folder import offsets_folder, undeclared_positions
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.settings import CommitLogSettings
from harvest_lib.pipeline.threads import Compactor

pytestmark = pytest.mark.quick

GIVEN = messages("C" + "AB" * 200)
STUCK_AT = 50


@pytest.fixture
def left_out(tmp_path):
    """A pipeline that `stuck` was taken out of, which stands at 50."""
    log = CommitLogSettings(segment_bytes=4096, compact_seconds=0.0)
    stuck, c0 = Taking(), Taking()
    stuck.refuses = lambda batch: any(each.offset >= STUCK_AT for each in batch)
    settings = {"stuck": {"batch_messages": 10}}
    with pytest.raises(PipelineError):
        Pipeline(
            declared(tmp_path, Script(GIVEN, batch=50), {"c0": c0, "stuck": stuck}, log=log, settings=settings)
        ).run()
    declaration = declared(tmp_path, Script(GIVEN, batch=50), {"c0": c0}, log=log)
    Pipeline(declaration).run()
    for name in ("lost+found", "empty"):
        offsets_folder(tmp_path, name).mkdir()
    offsets_folder(tmp_path, "notes").touch()
    assert undeclared_positions(declaration) == {"stuck": STUCK_AT}
    return declaration


def test_what_a_writer_lacks_that_is_not_declared_just_now_stays_in_the_log(left_out, tmp_path):
    assert operations.compact(left_out).freed_bytes > 0
    left = [each.offset for each in operations.messages(left_out, 0, len(GIVEN))]
    assert left == [0, *range(STUCK_AT, len(GIVEN))]
    again = Taking()
    Pipeline(declared(tmp_path, Script(), {"c0": Taking(), "stuck": again})).run()
    assert again.offsets == list(range(STUCK_AT, len(GIVEN)))


def test_who_removes_its_offsets_gives_up_what_it_lacks_and_a_new_writer_is_told(left_out, tmp_path, caplog):
    shutil.rmtree(offsets_folder(tmp_path, "stuck"))
    operations.compact(left_out)
    left = [each.offset for each in operations.messages(left_out, 0, len(GIVEN))]
    assert len(left) < 100
    again = Taking()
    with caplog.at_level(logging.WARNING):
        Pipeline(declared(tmp_path, Script(), {"c0": Taking(), "stuck": again})).run()
    assert again.offsets == left
    (reported,) = (each for each in caplog.records if each.message == "not_in_the_log")
    assert (reported.writer, reported.messages) == ("stuck", len(GIVEN) - len(left))


def test_a_pipeline_that_runs_compacts_by_itself_up_to_what_a_writer_lacks_that_is_not_declared(left_out, tmp_path):
    log = CommitLogSettings(segment_bytes=4096, compact_seconds=0.01)
    declaration = declared(tmp_path, Script(GIVEN, ends=False), {"c0": Taking()}, log=log)
    running = Running(declaration)
    eventually(lambda: len(list(operations.messages(declaration, 0, len(GIVEN)))) < len(GIVEN))
    running.stop()
    assert running.failure is None
    assert not {"compactor", "flusher"} & {each.name for each in threading.enumerate()}
    left = [each.offset for each in operations.messages(declaration, 0, len(GIVEN))]
    assert left == [0, *range(STUCK_AT, len(GIVEN))]


class Endless:
    """A log whose compaction never ends by itself."""

    begun = threading.Event()

    def compact(self, _up_to, *, going_on):
        self.begun.set()
        eventually(lambda: not going_on())
        return Compacted(segments=0, freed_bytes=0)


def test_a_pipeline_that_stops_waits_for_no_compaction(tmp_path):
    log = CommitLogSettings(compact_seconds=0.001)
    declaration = declared(tmp_path, Script(), {}, log=log)
    compactor = Compactor(declaration, Endless(), flushed=lambda: 0, changed=threading.Condition())
    compactor.start()
    assert Endless.begun.wait(60)
    stopping = threading.Thread(target=compactor.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()
