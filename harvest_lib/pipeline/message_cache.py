"""The last messages of the log, as bytes in memory: writers that keep up need not read them from the log.

Added to by one thread, read by any number. It forgets the oldest when their encodings take more than `most_bytes`.
"""

import threading
from bisect import bisect_right

from harvest_lib.pipeline.encoded_messages import EncodedMessages
from harvest_lib.pipeline.logged_messages import Run

_MOST_BYTES = 32 << 20


class MessageCache:
    """Batches by the offsets that they got in the log."""

    def __init__(self, end: int = 0, *, most_bytes: int = _MOST_BYTES) -> None:
        """`end` is that of the log, before anything is added."""
        self.end = end
        """Messages behind it in the log are of a batch that is still being appended."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._firsts: list[int] = []
        self._batches: list[tuple[EncodedMessages, int]] = []

    def add(self, first: int, batch: EncodedMessages) -> None:
        """Take a batch under the offsets that it got in the log, from `first` on; one that is too large is not kept."""
        size = batch.size
        with self._lock:
            self.end = first + len(batch)
            if size > self._most_bytes:
                return
            self._firsts.append(first)
            self._batches.append((batch, size))
            self._bytes += size
            while self._bytes > self._most_bytes:
                self._bytes -= self._batches[0][1]
                del self._firsts[0], self._batches[0]

    def run(self, begin: int, end: int, most: int) -> Run | None:
        """Return the messages from one offset on, before another, `most` of them at most; None where the first is
        forgotten, or never was here."""
        end = min(end, begin + most)
        parts, at = [], begin
        with self._lock:
            number = bisect_right(self._firsts, begin) - 1
            while 0 <= number < len(self._firsts) and at < end:
                first, (batch, _) = self._firsts[number], self._batches[number]
                if not first <= at < first + len(batch):
                    break
                parts.append((batch, at - first, min(end - first, len(batch))))
                at, number = first + len(batch), number + 1
        return Run(begin, parts) if parts else None
