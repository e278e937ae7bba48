"""Append events to a file: one file for each process, one line for each event."""

import os
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from infra.chaos.history.events import Event
from infra.chaos.history.lines import to_line


class HistoryWriter:
    """Writes the history of a process; any of its threads may append.

    A line is with the operating system when `append` returns: it outlives the process, however that ends. A file that
    is there already is gone on with, behind the torn last line that a killed process may have left.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        self._lock = Lock()
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._write(b"\n")

    def append(self, event: Event) -> None:
        """Write an event as a line. Raises OSError if the file cannot be written, ValueError after `close`."""
        line = to_line(event).encode()
        with self._lock:
            self._write(line)

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[self._file.write(left) :]

    def close(self) -> None:
        """Close the file; nothing can be appended any more."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
