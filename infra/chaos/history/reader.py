"""Read the files of a history as a single stream, in the order of time, whatever their size.

A bad line costs itself only: it is reported to the caller with its file and number.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import count
from pathlib import Path
from typing import NamedTuple

from infra.chaos.history.events import Event
from infra.chaos.history.lines import from_line

_LATE_EVENTS = 1_024
"""Threads stamp an event before they queue for the file: a line may stand this number of lines too late."""

_Entry = tuple[float, int, int, Event]
"""Time, number of the file, of the line: no two are equal, so events are never compared."""


class BadLine(NamedTuple):
    """A line that could not be taken as it stands."""

    file: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def read_history(files: Sequence[Path], *, on_bad: Callable[[BadLine], None]) -> Iterator[Event]:
    """Yield the events of `files`, oldest first; events of the same time in the order of their lines.

    `on_bad` gets each line that is no event, and each line whose time is so far before the lines above it that it
    can no longer be put in order (it is yielded all the same). Raises OSError for a file that cannot be read.
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
