"""A running pipeline: its states, its threads, and its stop.

    resuming ──► running ──► stopping ──► stopped
       └────────────────────────┘

- *Resuming*: every writer gets the messages between its position and the log's end, individually.
- *Running*: when all writers have reached the log's end, the reader starts, and continues after its last messages in
  the log. Writers write in bulk.
- *Stopping*: on request, after a failure, or when the reader has ended and all messages are written. The reader stops
  first. Then writers may write the log's messages until `shutdown_seconds` have passed. Last, offsets are flushed.

A failure during resuming stops the pipeline. A failure during running stops the pipeline too, unless the setting
`on_error` of the failed writer stops only that writer. The log then retains messages that this writer has not
acknowledged, and the next start resumes the writer.

A lost position is noted in the folder if its evidence disappears with time. Each later start then refuses to read.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.errors import HarvestError, PipelineError
from harvest_lib.pipeline import lost_position
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.declaration import Declaration
from harvest_lib.pipeline.folder import OpenLogs, open_folder
from harvest_lib.pipeline.reader_thread import ReaderThread
from harvest_lib.pipeline.threads import Compactor, Flusher
from harvest_lib.pipeline.writer_thread import WriterThread

if TYPE_CHECKING:
    from harvest_lib.consume.retention import Retained
    from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotState

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_WRITERS_PART = 0.8
"""Fraction of the shutdown time in which writers may begin bulks. The rest is for the last bulks, and for flushing."""


class PipelineState(Enum):
    """The state of a pipeline, as described in the module."""

    CREATED = "created"
    RESUMING = "resuming"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Pipeline:
    """A pipeline that can be run once."""

    def __init__(self, declaration: Declaration) -> None:
        self.state = PipelineState.CREATED
        self.name = declaration.name
        self.turned_at: float | None = None
        """Time at which the pipeline last checked its threads, in seconds since boot."""
        self._log: CommitLog | None = None
        self._declaration = declaration
        self._settings = declaration.settings
        self._stops_all = {each.name for each in declaration.writers if each.settings.on_error == "stop"}
        self._changed = threading.Condition()
        self._told = False
        self._stopping = threading.Event()
        self.writers: Sequence[WriterThread] = ()
        """The threads of the writers. Any thread may read their state."""
        self._reader: ReaderThread | None = None
        self._flusher: Flusher | None = None
        self._compactor: Compactor | None = None

    def stop(self) -> None:
        """Request a stop, and return at once. It takes no lock, so that it may be repeated and called in a signal
        handler."""
        self._told = True

    @property
    def log_end(self) -> int | None:
        """Return the offset that the next message of the log gets; None before the log is open."""
        return self._log.end if self._log is not None else None

    def retained(self) -> "Sequence[Retained]":
        """Return the retention of the source's partitions (`Reader.retained`). Any thread may call it. It does not
        block."""
        return self._reader.retained() if self._reader is not None else ()

    def slot_state(self) -> "SlotState | None":
        """Return the state of the reader's replication slot, None without a slot. Any thread may call it. It does not
        block."""
        return self._reader.slot_state() if self._reader is not None else None

    def run(self, *, resume_only: bool = False) -> None:
        """Run until `stop`, or until the reader has ended and all messages are written.

        With `resume_only`, the pipeline stops after resuming, and the reader never starts. Raises the HarvestError that
        stopped the pipeline, such as PipelineError.
        """
        left: Sequence[str] = ()
        try:
            with open_folder(self._declaration) as logs:
                try:
                    self._start(logs)
                    if self._resumed() and not resume_only:
                        self._flow(logs)
                finally:
                    left = self._shut_down()
                    logs.abandoned = bool(left)
        except HarvestError:
            self._report(left)  # an error of closing the logs must not hide the error that stopped the pipeline
            raise
        self._enter(PipelineState.STOPPED)
        self._report(left)

    # -- the states

    def _enter(self, state: PipelineState) -> None:
        self.state = state
        _log.info(f"pipeline_{state.value}", extra={"pipeline": self._declaration.name})

    def _start(self, logs: OpenLogs) -> None:
        self._log = logs.log
        self.writers = [
            WriterThread(
                logs.writer_progress(each), each.open, log=logs.log, changed=self._changed, stopping=self._stopping
            )
            for each in self._declaration.writers
        ]
        progress = [each.progress for each in self.writers]
        flush_seconds = self._settings.flush_seconds
        self._flusher = Flusher(logs.log, progress, flush_seconds=flush_seconds, changed=self._changed)
        self._enter(PipelineState.RESUMING)
        self._flusher.start()
        for writer in self.writers:
            writer.start()

    def _resumed(self) -> bool:
        """Wait until all writers have resumed. Return False if a writer or the flusher fails, or after `stop`."""
        self._await(lambda: all(each.resumed for each in self.writers) or self._some_failed())
        return all(each.resumed for each in self.writers) and not self._some_failed() and not self._told

    def _flow(self, logs: OpenLogs) -> None:
        """Run the reader until it ends, or until the pipeline must stop. If the reader ended without a failure, wait
        until the writers have written all messages."""
        lost_position.require_none(self._declaration.folder)
        self._enter(PipelineState.RUNNING)
        reader = self._reader = ReaderThread(
            self._declaration.reader.open,
            log=logs.log,
            message_cache=logs.message_cache,
            changed=self._changed,
            stopping=self._stopping,
            slowest=self._slowest,
            flushed=self._flushed,
            max_behind_messages=self._declaration.max_behind_messages,
        )
        reader.start()
        self._compactor = Compactor(self._declaration, logs.log, flushed=self._flushed, changed=self._changed)
        self._compactor.start()
        self._await(lambda: not reader.at_work or self._must_stop())
        if reader.failure is not None:
            lost_position.noted(self._declaration.folder, reader.failure)  # before the writers end, which may take long
        if reader.failure is None and not self._must_stop():
            for writer in self.writers:
                writer.finish(None)
            self._await(lambda: not any(each.at_work for each in self.writers) or self._must_stop())

    def _shut_down(self) -> Sequence[str]:
        """Stop the reader, then the writers. Return the names of the threads that did not end in time."""
        self._stopping.set()
        self._enter(PipelineState.STOPPING)
        seconds, left = self._settings.shutdown_seconds, []
        whole, for_bulks = Deadline(seconds), Deadline(seconds * _WRITERS_PART)
        if self._compactor is not None:
            self._compactor.stop()
        if self._reader is not None and not self._reader.join(for_bulks.remaining_seconds):
            left.append("the reader")
        for writer in self.writers:
            writer.finish(for_bulks)
        left += [f"writer `{each.progress.name}`" for each in self.writers if not each.join(whole.remaining_seconds)]
        if self._flusher is not None:
            self._flusher.stop()
        if self._reader is not None and "the reader" not in left:
            self._reader.close()
        for name in left:
            _log.warning("did_not_end_in_time", extra={"who": name, "given_seconds": seconds})
        return left

    def _report(self, left: Sequence[str]) -> None:
        """Raise the error that stopped the pipeline, or an error for threads in `left`, which did not end in time."""
        for each in (self._reader, *self.writers, self._flusher):
            if each is not None and each.failure is not None:
                raise lost_position.noted(self._declaration.folder, each.failure)
        if left:
            raise PipelineError(
                f"{' and '.join(left)} did not end in time",
                evidence=f"{self._settings.shutdown_seconds:g} s were given",
                next_step="run it again: unacknowledged messages are sent again; `shutdown` gives more time",
            )

    # -- conditions

    def _folder_failed(self) -> bool:
        return self._flusher is not None and self._flusher.failure is not None

    def _some_failed(self) -> bool:
        return self._folder_failed() or any(each.failure is not None for each in self.writers)

    def _must_stop(self) -> bool:
        failed = {each.progress.name for each in self.writers if each.failure is not None}
        return self._folder_failed() or bool(failed & self._stops_all) or len(failed) == len(self.writers)

    def _slowest(self) -> int | None:
        return min((each.progress.position for each in self.writers if each.at_work), default=None)

    def _flushed(self) -> int:
        return min(each.progress.flushed for each in self.writers)

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` returns True, or until `stop`. Short waits let Python run signal handlers."""
        while not self._told:
            self.turned_at = boot_seconds()
            with self._changed:
                if condition():
                    return
                self._changed.wait(_TICK_SECONDS)
