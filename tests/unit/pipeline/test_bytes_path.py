"""Unchanged messages pass through a pipeline as bytes: gated by counts of objects made and of calls."""

import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.pipelines import Script, Taking, declared, message, messages, reader_thread, writer_progress
from support.produced import Produced
from support.waiting import eventually

import harvest_lib
from harvest_lib.clock import Deadline
from harvest_lib.pipeline.adaptors import Reader, writing
from harvest_lib.pipeline.adaptors.kafka.writer import KafkaWriter
from harvest_lib.pipeline.adaptors.outbox import OutboxMessages
from harvest_lib.pipeline.commit_log import CommitLog, segment
from harvest_lib.pipeline.commit_log import log as log_module
from harvest_lib.pipeline.logged_messages import LoggedMessages, MessageCache
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.pipeline.offset_log import OffsetLog
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.transforms.ready import Omit

pytestmark = pytest.mark.quick

_OURS = str(Path(harvest_lib.__file__).parent)
_MESSAGES = 1_000
_CALLS_PER_MESSAGE = 6
"""Of the reader and two writers together, list comprehensions included, which Python 3.11 calls as functions."""
_CALLS_PER_BATCH = 500
_OBJECTS_PER_BATCH = 10
_PATIENCE_SECONDS = 0.05


@contextmanager
def counting():
    """Count calls of our functions, and the messages and entries that are made, in this thread."""
    found = Counter()

    def note(frame, event, _argument):
        if event == "call":
            code = frame.f_code
            made = frame.f_globals.get("__name__") in {"namedtuple_Message", "namedtuple_Entry"}
            found["objects"] += made or code.co_qualname in {"Encoded.__init__", "loads"}
            found["calls"] += code.co_filename.startswith(_OURS)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@contextmanager
def two_writers(folder):
    """Yield what is in memory and what writes for a file and for a topic, over one log."""
    with CommitLog(folder / "log", sync_seconds=1e9) as log:
        cache = MessageCache()
        file, kafka = writing("file"), writing("kafka")
        options = kafka.options(kafka={"bootstrap.servers": "none"}, topic="out", key={"t": ["key"]})
        topic = KafkaWriter(options, provider=lambda _settings: Produced())
        topic._topics = {"t": "out"}
        with closing(file.make(file.options(path=str(folder / "out.jsonl")))) as lines:
            how = {"message_cache": cache, "batch_messages": 5_000}
            progress = [writer_progress(name, log, OffsetLog(folder / name), **how) for name in ("file", "topic")]
            yield cache, list(zip(progress, (lines, topic), strict=True)), log
            for each in progress:
                each._offsets.close()


def rows(count):
    return [(number, "t", f"key-{number}", "x" * 200, ["Seq"], [str(number)]) for number in range(1, count + 1)]


def passed(folder, batch):
    """Put a batch through, and return the counts."""
    with two_writers(folder) as (cache, writers, log):
        reading = reader_thread(OneBatch(batch), log, message_cache=cache)
        with counting() as found:
            reading.run()
            assert reading.failure is None
            for progress, writer in writers:
                progress.bulk(writer, log.end)
        assert {progress.position for progress, _ in writers} == {log.end}
    assert (folder / "out.jsonl").read_bytes().count(b"\n") == _MESSAGES
    return found


class OneBatch(Reader):
    """A reader of one batch that is made as it is asked for."""

    def __init__(self, make):
        self._make = make

    def read(self, _last):
        yield self._make()


def test_no_message_is_made_of_what_passes_unchanged_and_few_functions_are_called(tmp_path):
    place = {"generation": 1, "number": 1, "delivered": _MESSAGES, "position": {}}
    found = passed(tmp_path, lambda: OutboxMessages(rows(_MESSAGES), 1, "outbox/s", place))
    assert found["objects"] <= _OBJECTS_PER_BATCH
    assert found["calls"] <= _CALLS_PER_MESSAGE * _MESSAGES + _CALLS_PER_BATCH


def test_what_a_reader_has_made_is_not_made_again(tmp_path):
    given = [message("t", number, key=f"key-{number}") for number in range(_MESSAGES)]
    assert passed(tmp_path, lambda: given)["objects"] <= _OBJECTS_PER_BATCH


@pytest.mark.parametrize("transform", [Omit(frozenset({"x"})), lambda each: each])
def test_a_transform_gets_messages_and_so_does_its_writer(tmp_path, transform):
    seen, plain, transformed = [], Given(), Given()

    def sees(each):
        seen.append(each)
        return transform(each)

    given = messages("AABBAABB")
    transforms = [("sees", sees)] if not isinstance(transform, Omit) else [("omit x", transform)]
    Pipeline(
        declared(
            tmp_path,
            Script(given),
            {"plain": plain, "transformed": transformed},
            settings={"transformed": {"transforms": transforms}},
        )
    ).run()
    expected = [each._replace(offset=offset) for offset, each in enumerate(given)]
    assert [each for write in plain.writes for each in write] == expected
    assert [each for write in transformed.writes for each in write] == expected
    assert all(type(each) is PipelineMessage for each in seen)
    assert plain.kinds == {LoggedMessages}
    assert transformed.kinds == {list}


def test_a_batch_that_is_being_appended_comes_whole_and_from_memory(tmp_path, monkeypatch):
    writer, second, asked = Given(), threading.Event(), []
    take, run = CommitLog._take, MessageCache.run

    def slow_take(log, packing):
        take(log, packing)
        if second.is_set() and log.folder.name == "commit" and not packing.done:
            deadline = Deadline(_PATIENCE_SECONDS)  # in which a writer would have taken what is there of it
            while not deadline.passed and max(writer.offsets) < 4:
                threading.Event().wait(0.01)

    def noted(cache, *where):
        found = run(cache, *where)
        asked.append(found is not None)
        return found

    class Two(Script):
        def read(self, _last):
            yield messages("A" * 4)
            eventually(lambda: writer.offsets == [0, 1, 2, 3])
            second.set()
            yield messages("A" * 40, first=4)

    monkeypatch.setattr(CommitLog, "_take", slow_take)
    monkeypatch.setattr(MessageCache, "run", noted)
    monkeypatch.setattr(segment, "BLOCK_BYTES", 200)
    monkeypatch.setattr(log_module, "BLOCK_BYTES", 200)
    Pipeline(declared(tmp_path, Two(), {"writer": writer})).run()
    assert [[each.offset for each in write] for write in writer.writes] == [[0, 1, 2, 3], list(range(4, 44))]
    assert all(asked)


class Given(Taking):
    """A writer that keeps what kind of sequence it was given."""

    def __init__(self):
        super().__init__()
        self.kinds = set()

    def write(self, messages):
        self.kinds.add(type(messages))
        super().write(messages)
