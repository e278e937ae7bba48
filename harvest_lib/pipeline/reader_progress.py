"""Appends the reader's messages to the commit log, and notifies the reader of those that all writers have kept.

Promises
- A batch is in the commit log before the reader is asked for the next one.
- The reader is notified of kept messages only once every writer's offsets are on the disk past them, and the log too.
- The reader is never more than `most_ahead` messages, and one batch, ahead of the slowest writer that is at work.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.heads import newest
from harvest_lib.pipeline.log_entries import message_of, packed
from harvest_lib.pipeline.message import Message
from harvest_lib.pipeline.message_cache import MessageCache

_TICK_SECONDS = 0.2


class ReaderProgress:
    """Used by one thread at a time, which `run` keeps until there is nothing more or `stopping` is set."""

    def __init__(
        self,
        log: CommitLog,
        *,
        changed: threading.Condition,
        slowest: Callable[[], int | None],
        flushed: Callable[[], int],
        most_ahead: int,
        message_cache: MessageCache | None = None,
    ) -> None:
        """Prepare.

        `changed` is notified of appended messages, and of writers that go on. `slowest` returns the position of the
        slowest at work, None if there is none; `flushed` the offset up to which those of all are on the disk.
        `message_cache` gets appended messages, for them.
        """
        self._log = log
        self._changed = changed
        self._slowest = slowest
        self._flushed = flushed
        self._most_ahead = most_ahead
        self._message_cache = message_cache
        self._last: dict[str, Message] = {}
        self._told = -1
        self._mark: tuple[int, Mapping[str, Message]] | None = None

    def run(self, reader: Reader, stopping: threading.Event) -> None:
        """Read until the end, or until asked to stop. Raises errors of the reader and the log."""
        self._last = {key.decode(): message_of(entry) for key, entry in self._log.newest().items()}
        self.tell(reader)
        batches = reader.read(dict(self._last))
        try:
            for batch in batches:
                if batch:
                    self._append(batch)
                self.tell(reader)
                self._wait(reader, stopping)
                if stopping.is_set():
                    break
        finally:
            close = getattr(batches, "close", None)  # a generator releases its resources
            if close is not None:
                close()

    def _append(self, batch: Sequence[Message]) -> None:
        whole = encoded(batch)
        offsets = self._log.append(packed(whole))
        if self._message_cache is not None:
            self._message_cache.add(offsets.start, whole)
        for key, place in newest(whole.heads).items():
            self._last[key.decode()] = whole[place]
        with self._changed:
            self._changed.notify_all()

    def tell(self, reader: Reader) -> None:
        """Notify the reader of kept messages, if there are new ones."""
        # One mark at a time: however far behind a writer is, only one message of each namespace is remembered.
        flushed = self._flushed()
        while True:
            if self._mark is None and self._log.end > self._told:
                self._mark = (self._log.end, dict(self._last))
            if self._mark is None or flushed < self._mark[0]:
                return
            if self._mark[1]:
                reader.kept(self._mark[1])
            self._told, self._mark = self._mark[0], None

    def _wait(self, reader: Reader, stopping: threading.Event) -> None:
        while not stopping.is_set():
            slowest = self._slowest()
            if slowest is None or self._log.end - slowest <= self._most_ahead:
                return
            with self._changed:
                self._changed.wait(_TICK_SECONDS)
            self.tell(reader)
