"""The thread of the reader: it appends messages to the commit log, and confirms to the reader the messages that all
writers have written.

Promises
- A batch is in the commit log before the next batch is requested.
- Messages are confirmed to the reader (`Reader.kept`) only when the log is synced, and every writer has flushed the
  offsets of these messages.
- The reader is at most `max_behind_messages` messages and one batch ahead of the slowest running writer.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.commit_log import CommitLog, LogEntry
from harvest_lib.pipeline.encoded_messages import NOOPS, encoded, message_of
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.pipeline.stop_reason import one_line
from harvest_lib.pipeline.threads import PipelineThread

if TYPE_CHECKING:
    from harvest_lib.consume.retention import Retained
    from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotState

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2


class ReaderThread(PipelineThread):
    """Thread that reads and appends until the reader ends or `stopping` is set."""

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        *,
        log: CommitLog,
        message_cache: MessageCache,
        changed: threading.Condition,
        stopping: threading.Event,
        slowest: Callable[[], int | None],
        flushed: Callable[[], int],
        max_behind_messages: int,
    ) -> None:
        """`changed` is notified of appended messages, and wakes this thread when a writer has advanced.

        `slowest` returns the position of the slowest running writer, None if no writer runs. `flushed` returns the
        lowest flushed position of all writers. Appended messages are added to `message_cache`, from which writers read.
        """
        super().__init__("reader", changed=changed, otherwise="the reader failed")
        self._open = open_reader
        self._reader: Reader | None = None
        self._log = log
        self._message_cache = message_cache
        self._stopping = stopping
        self._slowest = slowest
        self._flushed = flushed
        self._max_behind_messages = max_behind_messages
        self._needs_data = True
        self._last: dict[str, PipelineMessage] = {}
        self._told = -1
        self._mark: tuple[int, Mapping[str, PipelineMessage]] | None = None

    def retained(self) -> "Sequence[Retained]":
        """Return the retention of the source's partitions (`Reader.retained`). Any thread may call it. It does not
        block."""
        reader = self._reader if self.at_work else None
        retained = getattr(reader, "retained", None)  # a reader of another package need not inherit from `Reader`
        return retained() if retained is not None else ()

    def slot_state(self) -> "SlotState | None":
        """Return the state of the reader's replication slot, None without a slot. Any thread may call it. It does not
        block."""
        reader = self._reader if self.at_work else None
        slot_state = getattr(reader, "slot_state", None)
        return slot_state() if slot_state is not None else None

    def close(self) -> None:
        """Confirm the messages that all writers have written, and close the reader. Call this method after the thread's
        end."""
        if self._reader is None:
            return
        try:
            if self.failure is None:
                self._tell(self._reader)
        except Exception as error:  # noqa: BLE001 - the next start confirms again; written messages are not lost
            _log.warning("reader_not_told", extra={"reason": one_line(error)})
        try:
            self._reader.close()
        except Exception as error:  # noqa: BLE001 - it must not hide the error that stopped the pipeline
            _log.warning("reader_not_closed", extra={"reason": one_line(error)})

    def _work(self) -> None:
        reader = self._reader = self._open()
        self._needs_data = getattr(reader, "needs_data", True)  # as in `retained`
        self._last = {key.decode(): message_of(entry) for key, entry in self._log.newest(self._remembered).items()}
        self._tell(reader)
        batches = reader.read(dict(self._last))
        try:
            for batch in batches:
                if batch:
                    self._append(batch)
                self._tell(reader)
                self._wait(reader)
                if self._stopping.is_set():
                    break
        finally:
            close = getattr(batches, "close", None)  # a generator releases its resources
            if close is not None:
                close()

    def _log_failure(self, error: BaseException) -> None:
        _log.error("reader_failed", extra={"reason": one_line(error)})

    def _remembered(self, entry: LogEntry) -> LogEntry:
        return entry if self._needs_data or entry.mode in NOOPS else entry._replace(value=b"{}")

    def _append(self, batch: Sequence[PipelineMessage]) -> None:
        whole = encoded(batch)
        offsets = self._log.append(whole)
        self._message_cache.add(offsets.start, whole)
        for key, place in whole.newest(0, len(whole), 0).items():
            message = whole[place]
            has_data = self._needs_data or message.op is Op.NOOP
            self._last[key.decode()] = message if has_data else message._replace(data={})
        with self._changed:
            self._changed.notify_all()

    def _tell(self, reader: Reader) -> None:
        """Confirm to the reader those messages that all writers have written and that were not confirmed before."""
        # A mark is an end of the log, with the last message of each namespace before this end. There is a single mark
        # at a time, so that only one message per namespace is stored, however slow a writer is.
        flushed = self._flushed()
        while True:
            if self._mark is None and self._log.end > self._told:
                self._mark = (self._log.end, dict(self._last))
            if self._mark is None or flushed < self._mark[0]:
                return
            if self._mark[1]:
                reader.kept(self._mark[1])
            self._told, self._mark = self._mark[0], None

    def _wait(self, reader: Reader) -> None:
        while not self._stopping.is_set():
            slowest = self._slowest()
            if slowest is None or self._log.end - slowest <= self._max_behind_messages:
                return
            with self._changed:
                self._changed.wait(_TICK_SECONDS)
            self._tell(reader)
