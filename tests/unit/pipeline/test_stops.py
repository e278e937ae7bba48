"""Ends of a pipeline: on request, by a failure, by policy; and what each leaves to go on from."""

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.pipelines import Running, Script, Taking, anything, declared, message, messages, run
from support.waiting import eventually

from harvest_lib.clock import Deadline
from harvest_lib.errors import LogUnwritable, PipelineError, PositionLost, ServerRegressed
from harvest_lib.pipeline import lost_position, operations, pipeline
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.pipeline.offset_log import OffsetLog
from harvest_lib.pipeline.pipeline import Pipeline, PipelineState
from harvest_lib.pipeline.threads import Flusher

pytestmark = pytest.mark.gate


def full(_log):
    raise LogUnwritable("cannot append to the log", evidence="No space left on device", next_step="make room")


def test_a_clean_shutdown_lets_writers_commit_what_is_in_the_log(tmp_path):
    slow, fast = Taking(), Taking()
    slow.gate.clear()
    declaration = declared(tmp_path, Script(messages("A" * 100), ends=False), {"slow": slow, "fast": fast})
    running = Running(declaration)
    eventually(lambda: len(fast.offsets) == 100)
    running.pipeline.stop()
    eventually(lambda: running.pipeline.state is PipelineState.STOPPING)
    slow.gate.set()
    running.wait()
    assert running.failure is None
    assert slow.offsets == fast.offsets == list(range(100))
    assert all(each.behind == 0 for each in operations.pipeline_status(declaration).writers)


def test_asking_to_stop_takes_no_lock():
    """A signal's handler asks, and what it interrupts may hold any."""
    pipeline = Pipeline(declared(Path("unused"), Script(), {}))
    asking = threading.Thread(target=pipeline.stop, daemon=True)
    with pipeline._stopping._cond, pipeline._changed:
        asking.start()
        asking.join(60)
        assert not asking.is_alive()


class AtSecond(Taking):
    """Takes a bulk, and waits at the second."""

    def write(self, batch):
        super().write(batch)
        self.gate.clear()


def test_what_was_acknowledged_is_flushed_in_time_while_a_bulk_takes_long(tmp_path):
    slow = Taking()
    slow.refuses = lambda batch: slow.gate.wait(60) and False if batch[0].offset else slow.gate.clear()
    settings = {"slow": {"batch_messages": 10}}
    declaration = declared(
        tmp_path, Script(messages("A" * 20), batch=20, ends=False), {"slow": slow}, settings=settings
    )
    running = Running(declaration)
    eventually(lambda: operations.pipeline_status(declaration).writers[0].position == 10)
    assert slow.offsets == list(range(10)), "it is at the second bulk"
    slow.gate.set()
    running.stop()
    assert running.failure is None


def test_offsets_that_cannot_be_flushed_stop_the_pipeline_while_a_bulk_takes_long(tmp_path, monkeypatch):
    slow, reader = AtSecond(), Script(messages("A" * 20), batch=20, ends=False)
    settings = {"slow": {"batch_messages": 10, "on_error": "stop_writer"}}
    running = Running(declared(tmp_path, reader, {"slow": slow}, settings=settings, flush=0.5))
    eventually(lambda: len(slow.offsets) == 10)
    monkeypatch.setattr(OffsetLog, "flush", full)
    eventually(lambda: running.pipeline.state is PipelineState.STOPPING)
    slow.gate.set()
    running.wait()
    assert isinstance(running.failure, LogUnwritable)


def test_what_was_appended_is_synced_in_time_while_a_source_says_nothing(tmp_path):
    with CommitLog(tmp_path / "log", sync_seconds=0.05) as log:
        flusher = Flusher(log, [], flush_seconds=0.05, changed=threading.Condition())
        flusher.start()
        log.append([(1, 1, b"A", b"{}")])
        assert log.synced == 0
        eventually(lambda: log.synced == 1)
        flusher.stop()


@pytest.mark.parametrize(
    ("what", "method", "alone"),
    [(Script, "close", None), (OffsetLog, "close", LogUnwritable), (OffsetLog, "flush", LogUnwritable)],
    ids=["reader", "logs", "offsets"],
)
def test_what_cannot_be_closed_or_flushed_hides_no_failure(tmp_path, monkeypatch, what, method, alone):
    real = getattr(what, method)

    def fails(self):
        real(self)
        full(self)

    def refuses(_batch):
        monkeypatch.setattr(what, method, fails)
        return True

    with pytest.raises(PipelineError, match="writer `c0` did not take"):
        run(tmp_path / "both", Script(messages("AA")), {"c0": Taking(refuses)})
    with pytest.raises(alone) if alone else nullcontext():
        run(tmp_path / "alone", Script(messages("AA")), {"c0": Taking()})


def test_the_reader_starts_once_it_is_on_the_disk_that_all_writers_have_resumed(tmp_path):
    class Looking(Script):
        def read(self, last):
            self.found = operations.pipeline_status(declaration).writers[0].position
            return super().read(last)

    c0, reader = Taking(anything), Looking()
    with pytest.raises(PipelineError):
        run(tmp_path, Script(messages("AAAA")), {"c0": c0})
    declaration = declared(tmp_path, reader, {"c0": c0}, flush=30.0)
    Pipeline(declaration).run()
    assert reader.found == 4


def test_a_writer_that_does_not_end_in_time_is_named(tmp_path):
    slow = Taking()
    slow.gate.clear()
    reader = Script(messages("AA"), ends=False)
    running = Running(declared(tmp_path, reader, {"slow": slow}, shutdown_seconds=0.3))
    eventually(lambda: operations.pipeline_status(declared(tmp_path, reader, {"slow": slow})).end == 2)
    running.stop()
    assert "writer `slow`" in str(running.failure)
    assert "in time" in str(running.failure)
    slow.gate.set()
    eventually(lambda: not any(each.name == "writer slow" for each in threading.enumerate()))


def test_a_writer_that_is_too_slow_stops_in_time_and_goes_on_where_it_was(tmp_path, monkeypatch):
    time_is_over = threading.Event()

    class Limit(Deadline):
        passed = property(lambda _: time_is_over.is_set())

    def too_late(batch):
        if batch[0].offset >= 3 and not time_is_over.is_set():
            eventually(lambda: running.pipeline.writers[0]._until, "it has to end")
            time_is_over.set()
        return False

    monkeypatch.setattr(pipeline, "Deadline", Limit)
    slow, reader = Taking(), Script(messages("A" * 200), batch=200, ends=False)
    slow.refuses = too_late
    settings = {"slow": {"batch_messages": 1}}
    running = Running(declared(tmp_path, reader, {"slow": slow}, settings=settings))
    eventually(lambda: len(slow.writes) == 3)
    running.stop()
    assert running.failure is None
    assert slow.offsets == [0, 1, 2, 3]
    again = Taking()
    run(tmp_path, Script(), {"slow": again})
    assert slow.offsets + again.offsets == list(range(200))
    assert all(len(write) == 1 for write in again.writes), "resumed one at a time"


def test_a_resume_ends_between_two_messages(tmp_path):
    c0, slow, reader = Taking(anything), Taking(), Script()
    with pytest.raises(PipelineError):
        run(tmp_path, Script(messages("A" * 300), batch=300), {"c0": c0})
    slow.refuses = lambda batch: len(slow.writes) == 4 and not eventually(running.pipeline._stopping.is_set)
    running = Running(declared(tmp_path, reader, {"c0": slow}))
    eventually(lambda: len(slow.writes) == 4)
    running.stop()
    assert running.failure is None
    assert len(slow.offsets) < 300
    assert not reader.last
    run(tmp_path, Script(), {"c0": c0})
    assert slow.offsets + c0.offsets == list(range(300)), "all it sent is acknowledged"


def test_where_a_reader_ends_by_itself_nobody_is_in_a_hurry(tmp_path):
    class Slow(Taking):
        def write(self, batch):
            time.sleep(0.03)
            super().write(batch)

    slow, settings = Slow(), {"slow": {"batch_messages": 1}}
    reader = Script(messages("A" * 30), batch=30)
    run(tmp_path, reader, {"slow": slow}, shutdown_seconds=0.2, settings=settings)
    assert slow.offsets == list(range(30))


def at(number):
    """A bulk with the message of this number."""
    return lambda batch: any(each.data["n"] == number for each in batch)


def test_a_failed_bulk_stops_the_pipeline_but_others_write_what_is_in_the_log(tmp_path):
    bad, good, reader = Taking(at(50)), Taking(), Script(messages("A" * 100), ends=False)
    declaration = declared(tmp_path, reader, {"bad": bad, "good": good})
    with pytest.raises(PipelineError, match=r"(?s)writer `bad` did not take.*hung up"):
        Pipeline(declaration).run()
    assert good.offsets == list(range(operations.pipeline_status(declaration).end))
    assert reader.closed == bad.closed == good.closed == 1


def test_where_one_writer_fails_another_that_hangs_is_waited_for_no_longer_than_at_any_stop(tmp_path, caplog):
    bad, hanging = Taking(anything), Taking()
    hanging.gate.clear()
    declaration = declared(tmp_path, Script(messages("AA")), {"bad": bad, "hanging": hanging}, shutdown_seconds=0.5)
    running = Running(declaration)
    running.wait(60)
    assert "writer `bad` did not take offset" in str(running.failure)
    assert "writer `hanging`" in [each.who for each in caplog.records if each.message == "did_not_end_in_time"]
    hanging.gate.set()
    eventually(lambda: not any(each.name == "writer hanging" for each in threading.enumerate()))
    assert [each.position for each in operations.pipeline_status(declaration).writers] == [0, 0], "it is sent again"


def test_by_choice_a_failed_bulk_stops_its_writer_alone(tmp_path):
    bad, good, reader = Taking(at(50)), Taking(), Script(messages("A" * 100), ends=False)
    settings = {"bad": {"on_error": "stop_writer"}}
    declaration = declared(tmp_path, reader, {"bad": bad, "good": good}, settings=settings, max_behind_messages=20)
    running = Running(declaration)
    eventually(lambda: len(good.offsets) == 100)
    eventually(lambda: bad.closed)
    assert running.pipeline.state is PipelineState.RUNNING
    running.stop()
    assert "writer `bad`" in str(running.failure), "its failure is reported in the end"
    assert max((each["A"].data["n"] for each in reader.kept_at if each), default=-1) < 50, "the source keeps the rest"
    bad.refuses = lambda batch: False
    run(tmp_path, Script(), {"bad": bad, "good": good})
    assert bad.offsets == list(range(100))


def test_where_each_writer_was_to_stop_alone_and_all_have_the_pipeline_ends(tmp_path):
    settings = {"one": {"on_error": "stop_writer"}, "other": {"on_error": "stop_writer"}}
    reader, writers = Script(messages("A" * 10), ends=False), {"one": Taking(at(7)), "other": Taking(at(7))}
    with pytest.raises(PipelineError, match="writer `one` did not take"):
        run(tmp_path, reader, writers, settings=settings)


def test_the_reader_hears_of_nothing_that_a_kill_would_have_sent_again(tmp_path):
    """A writer has acknowledged it, and its offsets are not on the disk."""
    c0, reader = Taking(), Script(messages("A" * 20), ends=False)
    running = Running(declared(tmp_path, reader, {"c0": c0}, flush=30.0))
    eventually(lambda: len(c0.offsets) == 20)
    asked = reader.asked
    eventually(lambda: reader.asked > asked + 10)
    assert not any(reader.kept_at)
    running.stop()
    assert reader.kept_at[-1]["A"].data["n"] == 19


def test_no_reader_starts_while_one_writer_cannot_resume_whatever_the_policy(tmp_path):
    settings, reader = {"bad": {"on_error": "stop_writer"}}, Script(messages("AAAAAA"))
    with pytest.raises(PipelineError):
        run(tmp_path, Script(messages("AAAA")), {"bad": Taking(anything), "good": Taking()}, settings=settings)
    with pytest.raises(PipelineError, match="offset 0"):
        run(tmp_path, reader, {"bad": Taking(anything), "good": Taking()}, settings=settings)
    assert not reader.last


ERRORS = pytest.mark.parametrize(
    ("error", "says"), [(ConnectionError("gone"), "ConnectionError: gone"), (SystemExit(0), "SystemExit: 0")]
)


@ERRORS
def test_a_reader_that_fails_stops_the_pipeline_and_what_it_sent_is_written(tmp_path, error, says):
    class Failing(Script):
        def read(self, _last):
            yield messages("AAA")
            raise error

    writer = Taking()
    with pytest.raises(PipelineError, match=f"(?s)the reader failed.*{says}"):
        run(tmp_path, Failing(), {"c0": writer})
    assert writer.offsets == [0, 1, 2]


def test_the_reader_is_never_far_ahead_of_the_slowest_writer(tmp_path):
    slow, fast, reader = Taking(), Taking(), Script(messages("A" * 500), batch=10, ends=False)
    slow.gate.clear()
    declaration = declared(tmp_path, reader, {"slow": slow, "fast": fast}, max_behind_messages=50)
    running = Running(declaration)
    eventually(lambda: len(fast.offsets) > 50)
    assert len(fast.offsets) <= 60
    assert not any(reader.kept_at), "nothing reached every writer"
    slow.gate.set()
    eventually(lambda: len(slow.offsets) == 500)
    eventually(lambda: reader.kept_at and reader.kept_at[-1].get("A", message("A", 0)).data["n"] == 499)
    running.stop()
    assert running.failure is None


def test_messages_that_say_where_a_reader_stands_go_to_no_writer_and_come_back_to_it(tmp_path):
    noop = PipelineMessage(Op.NOOP, 1, "where", {"n": 2, "lsn": "0/16B3748"}, Mode.COMPLETE)
    writer, again = Taking(), Script()
    run(tmp_path, Script([*messages("AA"), noop]), {"c0": writer})
    assert writer.offsets == [0, 1]
    run(tmp_path, again, {"c0": writer})
    assert again.last[0]["where"] == noop._replace(offset=2)
    assert again.kept_at[0]["where"] == noop._replace(offset=2), "all writers are past it"


@ERRORS
def test_an_error_while_a_writer_connects_stops_the_pipeline_before_anything_is_read(tmp_path, error, says):
    def refuse():
        raise error

    reader = Script(messages("AA"))
    declaration = declared(tmp_path, reader, {"c0": Taking()})
    broken = replace(declaration, writers=[replace(declaration.writers[0], open=refuse)])
    with pytest.raises(PipelineError, match=f"(?s)writer `c0` failed.*{says}"):
        Pipeline(broken).run()
    assert not reader.last


class Lost(Script):
    """A reader that finds something lost at its source."""

    def __init__(self, error):
        super().__init__(messages("AB"))
        self.error = error

    def read(self, last):
        yield from super().read(last)
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        PositionLost("it ends before", evidence="at 7", next_step="look", wears_off=True),
        ServerRegressed("it ends before", evidence="at 7", next_step="look"),
    ],
)
def test_what_was_found_lost_once_is_refused_until_the_note_is_removed(tmp_path, error, monkeypatch):
    times = (datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=each) for each in count())
    monkeypatch.setattr(lost_position, "datetime", SimpleNamespace(now=lambda _: next(times)))
    writer = Taking()
    with pytest.raises(PositionLost, match="it ends before") as first:
        run(tmp_path, Lost(error), {"w": writer})
    for _ in range(2):  # whatever the reader would find by now
        later = Script(messages("ABC"))
        with pytest.raises(PositionLost, match="it ends before") as again:
            run(tmp_path, later, {"w": writer})
        assert later.last == []
        assert (again.value.evidence, again.value.next_step) == (first.value.evidence, first.value.next_step)
    assert again.value.next_step.endswith(f"rm {tmp_path / lost_position.FILE}")
    (tmp_path / lost_position.FILE).unlink()
    run(tmp_path, Script(messages("ABC")), {"w": writer})
    assert writer.numbers == [0, 1, 2]


def test_what_does_not_wear_off_is_not_noted(tmp_path):
    with pytest.raises(PositionLost):
        run(tmp_path, Lost(PositionLost("gone", next_step="look")), {"w": Taking()})
    run(tmp_path, Script(messages("ABC")), {"w": Taking()})
