"""The messages that came to the log last, as they are in memory: writers that keep up need not decode what was encoded.

Written by one thread, read by any number. It forgets the oldest when their encodings take more than `most_bytes`.
"""

from collections import deque
from collections.abc import Sequence

from harvest_lib.pipeline.commit_log.entry import Unnumbered
from harvest_lib.pipeline.extended_json import Encoded
from harvest_lib.pipeline.message import Message

_MOST_BYTES = 32 << 20


class MessageCache:
    """Messages by offset."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._messages: dict[int, Message] = {}
        self._batches: deque[tuple[range, int]] = deque()
        self.get = self._messages.get
        """Return the message at an offset, None where it is forgotten, or never was here."""

    def add(self, offsets: range, messages: Sequence[Message], entries: Sequence[Unnumbered]) -> None:
        """Take a batch under the offsets that it got in the log, and what it is there."""
        size = sum(len(value) for _, _, _, value in entries)
        if size > self._most_bytes:
            return
        self._messages.update(
            (offset, Message(op, timestamp, namespace, Encoded(data, value), mode, offset))
            for offset, (op, timestamp, namespace, data, mode, _), (_, _, _, value) in zip(
                offsets, messages, entries, strict=True
            )
        )
        self._batches.append((offsets, size))
        self._bytes += size
        while self._bytes > self._most_bytes:
            forgotten, size = self._batches.popleft()
            self._bytes -= size
            for offset in forgotten:
                del self._messages[offset]
