"""Reads the files of a history as a single stream in the order of time. Memory does not grow with the files.

A bad line is reported to the caller with its file and number, and only this line is lost.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import count
from pathlib import Path
from typing import NamedTuple

from infra.chaos.history.events import Event
from infra.chaos.history.lines import from_line

_LATE_EVENTS = 1_024
"""A line may be this number of lines too late, because threads stamp an event before they queue for the file."""

_Entry = tuple[float, int, int, Event]
"""Time, file number, line number and event. Two entries differ in the numbers, so events are never compared."""


class BadLine(NamedTuple):
    """A line that is no valid event, or whose time is out of order."""

    file: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def read_history(files: Sequence[Path], *, on_bad: Callable[[BadLine], None]) -> Iterator[Event]:
    """Yield the events of `files`, oldest first; events of the same time are in the order of files and lines.

    `on_bad` gets each line that is no event. It also gets each line that comes too late to be put in order; the event
    of such a line is yielded nevertheless. Raises OSError for a file that cannot be read.
    """
    streams = [_in_order(file, number, on_bad) for number, file in enumerate(files)]
    for entry in streams[0] if len(streams) == 1 else merge(*streams):
        yield entry[3]


def _in_order(file: Path, number: int, on_bad: Callable[[BadLine], None]) -> Iterator[_Entry]:
    waiting: list[_Entry] = []
    latest = float("-inf")
    for entry in _entries(file, number, on_bad):
        if entry[0] < latest:
            on_bad(BadLine(file, entry[2], "its time is before the time of lines far above it"))
        heappush(waiting, entry)
        if len(waiting) > _LATE_EVENTS:
            oldest = heappop(waiting)
            latest = max(latest, oldest[0])
            yield oldest
    while waiting:
        yield heappop(waiting)


def _entries(file: Path, number: int, on_bad: Callable[[BadLine], None]) -> Iterator[_Entry]:
    with file.open("rb") as stream:
        for line_number, line in zip(count(1), stream, strict=False):
            if line.isspace():
                continue
            try:
                event = from_line(line)
            except ValueError as error:  # also for text that is not UTF-8 or not JSON
                on_bad(BadLine(file, line_number, str(error)))
            else:
                yield event.time, number, line_number, event
