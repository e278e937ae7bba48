"""The thread that has appended messages and acknowledged offsets on the disk at their intervals, whatever readers and
writers wait for meanwhile: a bulk may take a writer minutes, and what it acknowledged before is flushed in time.
"""

import logging
import threading
from collections.abc import Sequence

from harvest_lib.errors import HarvestError
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.stop_reason import in_a_line, stopped_by
from harvest_lib.pipeline.writer_progress import Writing

_log = logging.getLogger(__name__)

_PART = 5
"""What is due is that much of an interval late at most."""
_LONGEST_TICK_SECONDS = 0.2
_SHORTEST_TICK_SECONDS = 0.02


class Flusher:
    """Flushes until it is stopped, or fails; tells `changed` of that."""

    def __init__(
        self, log: CommitLog, writings: Sequence[Writing], *, flush_seconds: float, changed: threading.Condition
    ) -> None:
        self.failure: HarvestError | None = None
        self._log = log
        self._writings = writings
        self._tick_seconds = min(_LONGEST_TICK_SECONDS, max(_SHORTEST_TICK_SECONDS, flush_seconds / _PART))
        self._changed = changed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, once it is through with what it flushes just now."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._tick_seconds):
                self._log.sync_if_due()
                for writing in self._writings:
                    writing.flush_if_due()
        except BaseException as error:  # noqa: BLE001 - reported by the pipeline
            _log.error("flush_failed", extra={"reason": in_a_line(error)})
            with self._changed:
                self.failure = stopped_by(error, "the pipeline's folder failed")
                self._changed.notify_all()
