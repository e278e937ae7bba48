"""A pipeline that is killed anywhere, over and over, and what its writers got meanwhile.

Run as a module it is a process without threads that forks a child for each line it reads: `KILL_AT FOLDER`. The child
runs the pipeline and kills itself, by SIGKILL, at that one of its events (an append, a message given to a writer, a
flush, an answer to the reader), or runs to its end. Its events are noted by writes to files, which outlive it.

    deliveries of a writer:  R          a run begins
                             W o n      offset o was given to it, in a write of n messages
                             F p        its offsets are flushed up to p
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from support.pipelines import declared

from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.declaration import Declaration
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.settings import CommitLogSettings
from harvest_lib.pipeline.writer_progress import WriterProgress

TOTAL = 500
BATCH = 20
WRITERS = ("all", "some", "odd")
SOME = "^[AC]$"


def message(number: int) -> PipelineMessage:
    """The message of a number; every tenth says where the reader is."""
    if number % 10 == 9:
        return PipelineMessage(Op.NOOP, number, "here", {"n": number})
    return PipelineMessage(
        Op.INSERT, number, "ABC"[number * number % 7 % 3], {"n": number, "text": "x" * (number % 50)}
    )


def wanted(writer: str) -> list[int]:
    """The numbers of the messages that a writer is to get; a message's offset is its number."""
    found = [each for each in map(message, range(TOTAL)) if each.op is not Op.NOOP]
    if writer == "some":
        found = [each for each in found if each.namespace in "AC"]
    if writer == "odd":
        found = [each for each in found if each.data["n"] % 2]
    return [each.data["n"] for each in found]


def _odd(each: PipelineMessage) -> PipelineMessage | None:
    return each if each.data["n"] % 2 else None


class Events:
    """Counts events, and kills this process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at
        self._lock = threading.Lock()

    def happened(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Counting(Reader):
    """A reader of numbers, which must come to the log without gaps."""

    def __init__(self, events: Events, notes: Path) -> None:
        self._events, self._notes = events, notes

    def read(self, last):
        place = 1 + max((each.data["n"] for each in last.values()), default=-1)
        while place < TOTAL:
            self._events.happened()
            end = min(place + BATCH, TOTAL)
            yield [message(number) for number in range(place, end)]
            place = end
        self._events.happened()

    def kept(self, last):
        self._events.happened()
        _note(self._notes, f"K {max(each.data['n'] for each in last.values())}\n")

    def close(self):
        pass


class Noting:
    """A writer that notes what it gets."""

    def __init__(self, events: Events, notes: Path) -> None:
        self._events, self._notes = events, notes

    def write(self, messages):
        for each in messages:
            self._events.happened()
            assert each.offset == each.data["n"]
            assert each._replace(offset=-1) == message(each.offset)
            _note(self._notes, f"W {each.offset} {len(messages)}\n")

    def close(self):
        pass


def declaration(folder: Path, events: Events) -> Declaration:
    for name in WRITERS:
        _note(folder / name, "R\n")
    return declared(
        folder / "pipeline",
        Counting(events, folder / "reader"),
        {name: Noting(events, folder / name) for name in WRITERS},
        flush=0.003,
        settings={"some": {"namespace": SOME}, "odd": {"batch_messages": 7, "transforms": [("odd", _odd)]}},
        log=CommitLogSettings(segment_bytes=4096, sync_seconds=0.01, compact_seconds=0.005),
        max_behind_messages=60,
    )


def _note(file: Path, line: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _child(kill_at: int, folder: Path) -> None:
    events = Events(kill_at)
    flush, one_at_a_time = WriterProgress.flush, threading.Lock()

    def noted_flush(self: WriterProgress) -> None:
        events.happened()
        with one_at_a_time:
            flush(self)
            _note(folder / self.name, f"F {self.flushed}\n")
        events.happened()

    WriterProgress.flush = noted_flush
    Pipeline(declaration(folder, events)).run()


def _serve() -> None:
    logging.disable()
    for line in sys.stdin:
        kill_at, _, folder = line.strip().partition(" ")
        child = os.fork()
        if not child:
            code = 1
            try:
                _child(int(kill_at), Path(folder))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - what its caller reads


class Killed:
    """The process that forks; a context manager."""

    def __enter__(self):
        command = [sys.executable, "-m", "support.killed_pipeline"]
        path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(self, kill_at: int, folder: Path) -> bool:
        """Run it until it is killed, which is False, or ends well; anything else fails."""
        self._process.stdin.write(f"{kill_at} {folder}\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in {0, -signal.SIGKILL}, f"it ended with {code}: see its standard error"
        return code == 0


if __name__ == "__main__":
    _serve()
