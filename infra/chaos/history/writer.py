"""Appends events to a file: each process has a file, and each event is a line."""

import os
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from infra.chaos.history.events import Event
from infra.chaos.history.lines import to_line


class HistoryWriter:
    """Writes the history of a process. Any thread may call `append`.

    When `append` returns, the operating system has the line, so the line survives the process, however the process
    ends. If the file exists, new lines are appended. An incomplete last line, which a killed process may have left, is
    ended first.
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
        """Close the file. `append` raises ValueError afterwards."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
