"""The threads of a pipeline, and the two interval threads: the flusher and the compactor.

Promises
- Appended messages and acknowledged offsets are on the disk at their intervals, whatever readers and writers wait for
    meanwhile. A bulk may take a writer minutes; offsets acknowledged before are flushed in time.
  - Compaction keeps messages in the log that any writer with offsets in the folder has not acknowledged. That includes
    a writer that is not declared now: it may be again.
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
"""A flush is late by at most a tick."""
_LONGEST_TICK_SECONDS = 0.2
_SHORTEST_TICK_SECONDS = 0.02


class PipelineThread(ABC):
    """Works until it is done or fails, and then notifies `changed`. Its first failure is for the pipeline to raise."""

    def __init__(self, name: str, *, changed: threading.Condition, otherwise: str) -> None:
        """`otherwise` is the cause to report for an exception that is not a HarvestError."""
        self.at_work = False
        self.failure: HarvestError | None = None
        self._changed = changed
        self._otherwise = otherwise
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self) -> None:
        self.at_work = True
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for its end; return True if it came in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Work in the thread that calls."""
        try:
            self._attempt(self._work, self._otherwise)
        finally:
            with self._changed:
                self.at_work = False
                self._changed.notify_all()

    def _attempt(self, step: Callable[[], None], otherwise: str) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - reported by the pipeline, an exit too: else it had just ended
            self._log_failure(error)
            self.failure = self.failure or stop_error(error, otherwise)

    @abstractmethod
    def _work(self) -> None: ...

    @abstractmethod
    def _log_failure(self, error: BaseException) -> None: ...


class _PeriodicThread(PipelineThread):
    """Calls `act` every `interval_seconds` until it is stopped; never for an interval of 0."""

    def __init__(self, name: str, *, interval_seconds: float, changed: threading.Condition) -> None:
        super().__init__(name, changed=changed, otherwise="the pipeline's folder failed")
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()

    @abstractmethod
    def act(self) -> None:
        """Do the work that is due."""

    def stop(self) -> None:
        """End the thread, and wait until it has finished its present work."""
        self._stopping.set()
        self.join()

    def _work(self) -> None:
        while self._interval_seconds and not self._stopping.wait(self._interval_seconds):
            self.act()


class Flusher(_PeriodicThread):
    """Flushes until it is stopped, or until it fails."""

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
    """Compacts the commit log. A failed compaction does not stop the pipeline; a stop ends a compaction early."""

    def __init__(
        self, declaration: Declaration, log: CommitLog, *, flushed: Callable[[], int], changed: threading.Condition
    ) -> None:
        """`flushed` returns the offset up to which all declared writers' offsets are on the disk."""
        super().__init__("compactor", interval_seconds=declaration.settings.commit_log.compact_seconds, changed=changed)
        self._declaration = declaration
        self._log = log
        self._flushed = flushed

    def act(self) -> None:
        """Compact up to the earliest offset that a writer has yet to acknowledge."""
        try:
            up_to = min([self._flushed(), *undeclared_positions(self._declaration).values()])
            compacted = self._log.compact(up_to, going_on=lambda: not self._stopping.is_set())
        except BaseException as error:  # noqa: BLE001 - of any kind: a later compaction may succeed
            self._log_failure(error)
        else:
            _log.debug("commit_log_compacted", extra={"what": str(compacted)})

    def _log_failure(self, error: BaseException) -> None:
        _log.warning("commit_log_not_compacted", extra={"reason": one_line(error)})
