"""The thread of the reader."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harvest_lib.errors import HarvestError
from harvest_lib.pipeline.adaptors import Reader, RetainedReader
from harvest_lib.pipeline.reader_progress import ReaderProgress
from harvest_lib.pipeline.stop_reason import one_line, stop_error

if TYPE_CHECKING:
    from harvest_lib.consume.retention import Retained

_log = logging.getLogger(__name__)


class ReaderThread:
    """Reads until the reader ends, or `stopping` is set; notifies `changed` of its end."""

    def __init__(
        self,
        reading: ReaderProgress,
        open_reader: Callable[[], Reader],
        *,
        changed: threading.Condition,
        stopping: threading.Event,
    ) -> None:
        self.at_work = False
        self.failure: HarvestError | None = None
        self._reading = reading
        self._open = open_reader
        self._reader: Reader | None = None
        self._changed = changed
        self._stopping = stopping
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self.at_work = True
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for its end; return True if it came in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def retained(self) -> "Sequence[Retained]":
        """Return the retention of the logs that are read. From any thread; does not wait."""
        reader = self._reader if self.at_work else None
        return reader.retained() if isinstance(reader, RetainedReader) else ()

    def close(self) -> None:
        """Notify the reader of messages kept by now, and close it. For after the thread's end."""
        if self._reader is None:
            return
        try:
            if self.failure is None:
                self._reading.tell(self._reader)
        except Exception as error:  # noqa: BLE001 - it will be notified again; kept messages are kept
            _log.warning("reader_not_told", extra={"reason": one_line(error)})
        try:
            self._reader.close()
        except Exception as error:  # noqa: BLE001 - it does not hide the error that stopped the pipeline
            _log.warning("reader_not_closed", extra={"reason": one_line(error)})

    def _run(self) -> None:
        try:
            self._reader = self._open()
            self._reading.run(self._reader, self._stopping)
        except BaseException as error:  # noqa: BLE001 - reported by the pipeline, an exit too: else it had just ended
            _log.error("reader_failed", extra={"reason": one_line(error)})
            self.failure = stop_error(error, "the reader failed")
        finally:
            with self._changed:
                self.at_work = False
                self._changed.notify_all()
