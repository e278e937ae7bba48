"""A reader and a writer that tests script, and pipelines between them."""

import threading
import time
from collections.abc import Mapping, Sequence

from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.declaration import Declaration, DeclaredReader, DeclaredWriter
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.reader_thread import ReaderThread
from harvest_lib.pipeline.routing import Routing
from harvest_lib.pipeline.settings import CommitLogSettings, PipelineSettings, WriterSettings
from harvest_lib.pipeline.writer_progress import WriterProgress


def message(namespace, number, **more):
    return PipelineMessage(Op.INSERT, 1_000 + number, namespace, {"n": number, **more})


def messages(keys, first=0):
    """One message for each letter, numbered: `messages("AABB")`."""
    return [message(key, number) for number, key in enumerate(keys, start=first)]


class Script(Reader):
    """A reader of messages that are given; it keeps the arguments of its calls.

    It goes on after the newest message that it had sent down by `last`, by its number.
    """

    def __init__(self, given: Sequence[PipelineMessage] = (), *, batch=4, ends=True):
        self.given = list(given)
        self.batch = batch
        self.ends = ends
        self.last: list[Mapping[str, PipelineMessage]] = []
        self.kept_at: list[Mapping[str, PipelineMessage]] = []
        self.closed = 0
        self.asked = 0
        """Reads that had nothing to give."""

    def read(self, last):
        self.last.append(dict(last))
        place = 1 + max((each.data["n"] for each in last.values()), default=-1)
        while True:
            batch = [each for each in self.given if each.data["n"] >= place][: self.batch]
            if batch:
                place = batch[-1].data["n"] + 1
                yield batch
            elif self.ends:
                return
            else:
                self.asked += 1
                time.sleep(0.005)
                yield []

    def kept(self, last):
        self.kept_at.append(dict(last))

    def close(self):
        self.closed += 1


class Taking:
    """A writer that keeps what it was given, write by write, except for the writes that `refuses` picks."""

    def __init__(self, refuses=lambda messages: False, failing: BaseException | None = None):
        self.writes: list[list[PipelineMessage]] = []
        self.refuses = refuses
        self.failing = failing or ConnectionError("the other side hung up")
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0

    def write(self, messages):
        self.gate.wait(60)
        if self.refuses(messages):
            raise self.failing
        self.writes.append(list(messages))

    def close(self):
        self.closed += 1

    @property
    def offsets(self):
        """The offsets of what it took, in the order it took them."""
        return [each.offset for write in self.writes for each in write]

    @property
    def numbers(self):
        return [each.data["n"] for write in self.writes for each in write]


def declared(folder, reader, writers, *, flush=0.02, settings: Mapping[str, Mapping] | None = None, log=None, **more):
    """Declare a pipeline; `settings` are those of writers by name."""
    chosen = settings or {}
    return Declaration(
        settings=PipelineSettings(
            name="test",
            folder=folder,
            flush_seconds=flush,
            commit_log=log or CommitLogSettings(sync_seconds=0.05, compact_seconds=0.0),
            **{"shutdown_seconds": 60.0, **more},
        ),
        reader=DeclaredReader(adaptor="script", open=lambda: reader),
        writers=[
            DeclaredWriter(
                name=name,
                adaptor="taking",
                open=lambda writer=writer: writer,
                transforms=chosen.get(name, {}).get("transforms", ()),
                settings=WriterSettings(
                    **{key: each for key, each in chosen.get(name, {}).items() if key != "transforms"}
                ),
            )
            for name, writer in writers.items()
        ],
    )


def run(folder, reader, writers, **how):
    """Run a pipeline to its end; return its declaration, whose writers refuse nothing from then on."""
    declaration = declared(folder, reader, writers, **how)
    try:
        Pipeline(declaration).run()
    finally:
        for each in writers.values():
            each.refuses = Taking().refuses
    return declaration


def anything(_messages):
    """`refuses` of a writer that takes nothing."""
    return True


def writer_progress(name, log, offsets, **how):
    """Return the progress of a writer that gets all messages as they are."""
    return WriterProgress(name, log=log, offsets=offsets, routing=Routing(), **how)


def reader_thread(reader, log, *, flushed=lambda: 0, message_cache=None):
    """Return a reader's thread that waits for no writer."""
    return ReaderThread(
        lambda: reader,
        log=log,
        message_cache=message_cache or MessageCache(),
        changed=threading.Condition(),
        stopping=threading.Event(),
        slowest=lambda: None,
        flushed=flushed,
        max_behind_messages=1_000,
    )


class Running:
    """A pipeline on a thread of its own."""

    def __init__(self, declaration, **how):
        self.pipeline = Pipeline(declaration)
        self.failure = None
        self._thread = threading.Thread(target=self._run, kwargs=how, daemon=True)
        self._thread.start()

    def _run(self, **how):
        try:
            self.pipeline.run(**how)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def wait(self, seconds=60):
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the pipeline does not end"

    def stop(self):
        self.pipeline.stop()
        self.wait()
