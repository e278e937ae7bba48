"""The thread of a writer: it resumes, then writes in bulk, until `finish` is called and the log's end is reached.

If a database becomes unavailable after the writer has resumed, the thread waits and tries again. During the resume, the
thread does so only if the database reports a temporary error (a lock, a timeout, a full disk). Each attempt to write
opens a new writer, with a new connection. A bulk that was refused three times may be too large: its messages are then
written individually. If the connection is lost again and again at the same message, although the server runs, that
message is considered the cause, and the writer stops.

The thread flushes acknowledged offsets after the resume and at its end, also after an error. In between, `Flusher`
flushes them.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import closing

from harvest_lib.clock import Deadline
from harvest_lib.errors import DatabaseUnavailable, PipelineError
from harvest_lib.pipeline.adaptors import Writer
from harvest_lib.pipeline.adaptors.refusal import LostWhileWriting
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.stop_reason import one_line
from harvest_lib.pipeline.threads import PipelineThread
from harvest_lib.pipeline.writer_progress import WriterProgress
from harvest_lib.postgres import postgres_causes

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_REFUSALS_OF_A_BULK = 3
"""Number of consecutive refusals of a bulk after which its messages are written individually."""
_LOSSES_OF_A_MESSAGE = 8
"""Number of consecutive failures at a message after which a lost connection is blamed on the message."""


class WriterThread(PipelineThread):
    """Thread that runs a writer. Its state is read under `changed`, which the thread notifies after each change."""

    def __init__(
        self,
        writing: WriterProgress,
        open_writer: Callable[[], Writer],
        *,
        log: CommitLog,
        changed: threading.Condition,
        stopping: threading.Event,
    ) -> None:
        """`writing` is the writer's progress. `open_writer` is called for each attempt to write. If `stopping` is set,
        a resume ends after the present message."""
        super().__init__(
            f"writer {writing.name}",
            changed=changed,
            otherwise=f"the offsets of writer `{writing.name}` cannot be flushed",
        )
        self.progress = writing
        self.resumed = False
        """True if the writer has acknowledged all messages that the log had when the resume began."""
        self._open = open_writer
        self._log = log
        self._stopping = stopping
        self._until: Deadline | None = None
        self._nothing_comes = False
        self._singly_until = 0
        """The offset before which messages are written individually."""

    def finish(self, deadline: Deadline | None) -> None:
        """Request the thread to end at the log's end, or when the deadline has passed (None: no deadline). Does not
        wait."""
        with self._changed:
            self._until, self._nothing_comes = deadline, True
            self._changed.notify_all()

    def _work(self) -> None:
        self._attempt(self._write, f"writer `{self.progress.name}` failed")
        self.progress.flush()

    def _log_failure(self, error: BaseException) -> None:
        writing = self.progress
        _log.error("writer_failed", extra={"writer": writing.name, "at": writing.position, "reason": one_line(error)})

    def _write(self) -> None:
        pause, position, refusals, name = _FIRST_PAUSE_SECONDS, -1, 0, self.progress.name
        while True:
            try:
                with closing(self._open()) as writer:
                    if self.resumed or self._resume(writer):
                        self._bulk(writer)
            except PipelineError as error:
                away = error.__cause__
                answered = away is not None and postgres_causes.answered(away)
                if not isinstance(away, DatabaseUnavailable) or not (self.resumed or answered):
                    raise
                if self.progress.position > position:  # the writer has advanced since the last failure
                    pause, position, refusals = _FIRST_PAUSE_SECONDS, self.progress.position, 0
                    _log.warning("writer_waits", extra={"writer": name, "at": position, "reason": one_line(away)})
                # An error without SQLSTATE means that the server opened no session: the bulk is not the cause.
                refused = answered and bool(postgres_causes.sqlstate(away))
                refusals += refused or isinstance(away, LostWhileWriting)
                if refusals > _LOSSES_OF_A_MESSAGE and self._goes_singly and isinstance(away, LostWhileWriting):
                    raise
                if refusals == _REFUSALS_OF_A_BULK and self.resumed and not self._goes_singly:
                    self._singly_until = position + self.progress.bulk_messages
                    _log.warning("writer_goes_singly", extra={"writer": name, "at": position, "reason": one_line(away)})
            else:
                return
            if not self._wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    @property
    def _goes_singly(self) -> bool:
        return self.progress.position < self._singly_until

    def _wait(self, seconds: float) -> bool:
        """Wait before the next attempt to write. Return False if the time for writing ends during the wait, else
        True."""
        deadline = Deadline(seconds)
        with self._changed:
            while not self._is_over:
                if deadline.passed:
                    return True
                self._changed.wait(min(_TICK_SECONDS, deadline.remaining_seconds))
        return False

    @property
    def _is_over(self) -> bool:
        """True if the deadline for writing has passed, or if the pipeline stops during the resume."""
        return (self._until is not None and self._until.passed) or (not self.resumed and self._stopping.is_set())

    def _resume(self, writer: Writer) -> bool:
        """Write the messages up to the log's present end individually. Return False if the pipeline stops first."""
        end, sent = self._log.end, 0
        for message in self.progress.resume(writer, end):
            sent += message is not None
            if self._stopping.is_set():
                return False
        self.progress.flush()
        if sent:
            _log.info("writer_resumed", extra={"writer": self.progress.name, "messages": sent, "at": end})
        if self.progress.missed:
            _log.warning("not_in_the_log", extra={"writer": self.progress.name, "messages": self.progress.missed})
        with self._changed:
            self.resumed = True
            self._changed.notify_all()
        return True

    def _bulk(self, writer: Writer) -> None:
        while True:
            # Wait until a batch is appended completely: then the whole batch is in memory.
            end = self._log.end if self._nothing_comes else self.progress.whole_batches
            if self.progress.position < end:
                if self._until is not None and self._until.passed:
                    return
                if self._goes_singly:
                    self._singly(writer, min(end, self._singly_until))
                else:
                    self.progress.bulk(writer, end)
                with self._changed:
                    self._changed.notify_all()
            else:
                with self._changed:
                    if self._nothing_comes:
                        if self._log.end == end:
                            return
                    elif self.progress.whole_batches == end:
                        self._changed.wait(_TICK_SECONDS)

    def _singly(self, writer: Writer, end: int) -> None:
        for _ in self.progress.resume(writer, end):
            with self._changed:
                self._changed.notify_all()
            if self._until is not None and self._until.passed:
                return
