"""A log handler that never waits for the reader of the log.

    the code that logs ─► queue of lines, at most MOST_CHARACTERS ─► a thread ─► standard error

Promises
- A reader that stops reading (a pager, a stalled pipe, a terminal after Ctrl-S, a network disk that hangs) blocks only
  the log.
- If the queue is full, lines are dropped and counted. When the reader reads again, the event `log_lines_dropped` is
  logged in place of the dropped lines, with their number.
- `flush` and the end of the process wait for up to FLUSH_SECONDS, so that an active reader gets every line.
"""

import logging
import os
import select
import threading
from collections import deque
from contextlib import suppress
from typing import Any, TextIO

from harvest_lib.process import threads

_log = logging.getLogger(__name__)

MOST_CHARACTERS = 4_000_000
"""Maximum number of characters in the queue."""
FLUSH_SECONDS = 2.0


class LogWriter(logging.StreamHandler[Any]):
    """Writes each record to a stream, on a thread of its own."""

    def __init__(self, stream: TextIO, most_characters: int = MOST_CHARACTERS) -> None:
        """`stream` must have a file descriptor. Lines are written to the descriptor, not through the stream, so that no
        thread waits for the stream's locks."""
        super().__init__(_Descriptor(stream))
        assert self.lock is not None  # noqa: S101 - the base class creates it
        self._changed = threading.Condition(self.lock)  # logging reinitializes the lock in a child of `fork`
        self._most = most_characters
        self._thread: threading.Thread | None = None
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Empty the queue. A child process calls this after `fork`, because the parent process writes the queued
        lines."""
        self._lines: deque[tuple[logging.LogRecord, str]] = deque()
        self._characters = self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record to the queue, or drop it if the queue is full."""
        try:
            line = self.format(record) + self.terminator
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)
            return
        with self._changed:
            if self._dropped or (self._lines and self._characters + len(line) > self._most):
                self._dropped += 1
                return
            self._lines.append((record, line))
            self._characters += len(line)
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():
                with suppress(RuntimeError):  # the thread cannot be started now; the next record tries again
                    self._thread = threads.start("harvest-log", self._write_on)

    def flush(self) -> None:
        """Wait until the queue is empty, for at most FLUSH_SECONDS."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, FLUSH_SECONDS)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                record, line = self._lines[0]
            try:
                self.stream.write(line)
            except Exception:  # noqa: BLE001 - as every handler does
                self.handleError(record)
            with self._changed:
                self._lines.popleft()
                self._characters -= len(line)
                dropped = self._dropped if self._characters <= self._most // 2 else 0
                self._dropped -= dropped
                self._changed.notify_all()
            if dropped:
                _log.warning("log_lines_dropped", extra={"count": dropped})


class _Descriptor:
    """A writer of text to the file of a text stream. It bypasses the stream's buffer.

    The writer duplicates the descriptor. After the stream is closed, the number of the stream's descriptor may become
    the number of a connection, and lines of the log would corrupt that connection.
    """

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = os.dup(stream.fileno())
        self._encoding, self._errors = stream.encoding or "utf-8", stream.errors or "backslashreplace"

    def write(self, text: str) -> int:
        left = memoryview(text.encode(self._encoding, self._errors))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another program has set the shared pipe to non-blocking
                select.select((), (self._descriptor,), ())
        return len(text)

    def flush(self) -> None:
        """Do nothing, because there is no buffer."""
