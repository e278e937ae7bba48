"""The base class of a pipeline's threads, and the two periodic threads: the flusher and the compactor.

Promises
- Appended messages and acknowledged offsets are synced at their intervals, even if the reader or a writer is blocked. A
  bulk may take minutes; offsets that the writer acknowledged before the bulk are flushed in time.
- Compaction does not remove messages that a writer with offsets in the folder has not acknowledged. This also holds for
  a writer that is not declared at present, because it may be declared again.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from harvest_lib.errors import HarvestError
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.declaration import Declaration
from harvest_lib.pipeline.folder import undeclared_positions
from harvest_lib.pipeline.stop_reason import one_line, stop_error
from harvest_lib.pipeline.writer_progress import WriterProgress

_log = logging.getLogger(__name__)

_TICKS_PER_INTERVAL = 5
"""Number of checks per flush interval. A flush is late by at most the time between two checks."""
_LONGEST_TICK_SECONDS = 0.2
_SHORTEST_TICK_SECONDS = 0.02


class PipelineThread(ABC):
    """A thread that works until it is done or fails, and then notifies `changed`. Its first failure is stored in
    `failure`, which the pipeline raises."""

    def __init__(self, name: str, *, changed: threading.Condition, otherwise: str) -> None:
        """`otherwise` is the cause that is reported for an exception that is not a HarvestError."""
        self.at_work = False
        self.failure: HarvestError | None = None
        self._changed = changed
        self._otherwise = otherwise
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self) -> None:
        self.at_work = True
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` (None: without limit) for the end of the thread; return True if it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Do the thread's work in the calling thread, until it is done or fails."""
        try:
            self._attempt(self._work, self._otherwise)
        finally:
            with self._changed:
                self.at_work = False
                self._changed.notify_all()

    def _attempt(self, step: Callable[[], None], otherwise: str) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the pipeline reports it; SystemExit would be silent
            self._log_failure(error)
            self.failure = self.failure or stop_error(error, otherwise)

    @abstractmethod
    def _work(self) -> None: ...

    @abstractmethod
    def _log_failure(self, error: BaseException) -> None: ...


class _PeriodicThread(PipelineThread):
    """A thread that calls `act` every `interval_seconds` until it is stopped. With an interval of 0, it never calls
    `act`."""

    def __init__(self, name: str, *, interval_seconds: float, changed: threading.Condition) -> None:
        super().__init__(name, changed=changed, otherwise="the pipeline's folder failed")
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()

    @abstractmethod
    def act(self) -> None:
        """Do the work of one interval."""

    def stop(self) -> None:
        """Request the thread to end, and wait until it has finished the present call of `act`."""
        self._stopping.set()
        self.join()

    def _work(self) -> None:
        while self._interval_seconds and not self._stopping.wait(self._interval_seconds):
            self.act()


class Flusher(_PeriodicThread):
    """Thread that syncs the log and flushes the writers' offsets when they are due. It ends with its first failure."""

    def __init__(
        self, log: CommitLog, writers: Sequence[WriterProgress], *, flush_seconds: float, changed: threading.Condition
    ) -> None:
        tick_seconds = min(_LONGEST_TICK_SECONDS, max(_SHORTEST_TICK_SECONDS, flush_seconds / _TICKS_PER_INTERVAL))
        super().__init__("flusher", interval_seconds=tick_seconds, changed=changed)
        self._log = log
        self._writers = writers

    def act(self) -> None:
        self._log.sync_if_due()
        for writer in self._writers:
            writer.flush_if_due()

    def _log_failure(self, error: BaseException) -> None:
        _log.error("flush_failed", extra={"reason": one_line(error)})


class Compactor(_PeriodicThread):
    """Thread that compacts the commit log. A failed compaction does not stop the pipeline. A stop ends a compaction
    early."""

    def __init__(
        self, declaration: Declaration, log: CommitLog, *, flushed: Callable[[], int], changed: threading.Condition
    ) -> None:
        """`flushed` returns the lowest flushed position of all declared writers."""
        super().__init__("compactor", interval_seconds=declaration.settings.commit_log.compact_seconds, changed=changed)
        self._declaration = declaration
        self._log = log
        self._flushed = flushed

    def act(self) -> None:
        """Compact the log up to the lowest offset that a writer has not acknowledged on the disk."""
        try:
            up_to = min([self._flushed(), *undeclared_positions(self._declaration).values()])
            compacted = self._log.compact(up_to, going_on=lambda: not self._stopping.is_set())
        except BaseException as error:  # noqa: BLE001 - a later compaction may succeed
            self._log_failure(error)
        else:
            _log.debug("commit_log_compacted", extra={"what": str(compacted)})

    def _log_failure(self, error: BaseException) -> None:
        _log.warning("commit_log_not_compacted", extra={"reason": one_line(error)})
