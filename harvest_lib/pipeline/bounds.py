"""Limits, in bytes, for messages in memory: a reader's batch, a writer's bulk, the cache of messages between them.

Promises
- A batch or a bulk exceeds its limit in bytes by at most one message, whatever its limit in messages is.
- Sizes of texts and bytes are upper estimates. They include the Python objects of a message.
"""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from sys import getsizeof
from typing import Any

BATCH_BYTES = 4 << 20
"""Limit of a reader's batch, in bytes. A batch ends with the message that reaches the limit."""
BULK_BYTES = 4 << 20
"""Limit of a writer's bulk, in bytes. In memory, a bulk exists several times: encoded, decoded, in the destination's
format."""

_MESSAGE_BYTES = 300
_VALUE_BYTES = 100
_ESCAPED = b"\\u"
"""The start of an escaped character in JSON, which may need several bytes in Python's memory."""


class Room:
    """Counter of the messages and bytes in a batch, with a limit for each. `take` counts a message, and returns True if
    the batch is full."""

    def __init__(self, messages: int, most_bytes: int = BATCH_BYTES) -> None:
        self._messages, self._most_bytes = messages, most_bytes
        self._count = self._bytes = 0

    @property
    def left(self) -> tuple[int, int]:
        """Return how many messages and how many bytes still fit into the batch, each at least 1."""
        return max(1, self._messages - self._count), max(1, self._most_bytes - self._bytes)

    @property
    def is_full(self) -> bool:
        return self._count >= self._messages or self._bytes >= self._most_bytes

    def take(self, size_bytes: int) -> bool:
        """Count a message of this size, and return True if the batch is full."""
        self._count += 1
        self._bytes += size_bytes
        return self.is_full

    def empty(self) -> None:
        """Reset the counters for the next batch."""
        self._count = self._bytes = 0


def size_of(value: Any) -> int:
    """Return the approximate size in memory of a value in a message, or of a message's data, in bytes."""
    if isinstance(value, str):
        return len(value) if value.isascii() else getsizeof(value)  # a single wide character makes the whole text wide
    if isinstance(value, bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_VALUE_BYTES + size_of(each) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(_VALUE_BYTES + size_of(each) for each in value)
    return 0


def size_decoded(encodings: Sequence[bytes]) -> int:
    """Return an upper estimate of the memory that the decoded objects take, in bytes. The number of values is estimated
    from the commas."""
    is_plain = all(map(methodcaller("isascii"), encodings)) and not any(map(methodcaller("count", _ESCAPED), encodings))
    return (
        _MESSAGE_BYTES * len(encodings)
        + sum(map(len if is_plain else _text_bytes, encodings))
        + _VALUE_BYTES * int(sum(map(methodcaller("count", b","), encodings)))
    )


def _text_bytes(encoding: bytes) -> int:
    if not encoding.isascii():
        return getsizeof(encoding.decode(errors="replace"))
    return 4 * len(encoding) if _ESCAPED in encoding else len(encoding)
