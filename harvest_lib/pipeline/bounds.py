"""Bounds by bytes for the messages in memory: a reader's batch, a writer's bulk, the messages kept for both.

Promises
- A batch or a bulk has a message more than its bytes allow at most, whatever its number of messages is bounded by.
- Sizes of texts and bytes are upper estimates. They include the Python objects of a message.
"""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from sys import getsizeof
from typing import Any

BATCH_BYTES = 4 << 20
"""A reader's batch. A message as large is a batch of its own."""
BULK_BYTES = 4 << 20
"""A writer's bulk. Several copies exist: encoded, decoded, and in the destination's form."""

_MESSAGE_BYTES = 300
_VALUE_BYTES = 100
_ESCAPED = b"\\u"
"""Begins an escaped character in JSON, which may be a wide character."""


class Room:
    """Room of a batch, by messages and bytes. `take` counts a message, and returns True if that fills the batch;
    the next message then begins a new batch."""

    def __init__(self, messages: int, most_bytes: int = BATCH_BYTES) -> None:
        self._messages, self._most_bytes = messages, most_bytes
        self._count = self._bytes = 0

    @property
    def left(self) -> tuple[int, int]:
        """Return how many messages and bytes there is room for, at least 1 each."""
        return max(1, self._messages - self._count), max(1, self._most_bytes - self._bytes)

    @property
    def is_full(self) -> bool:
        return self._count >= self._messages or self._bytes >= self._most_bytes

    def take(self, size_bytes: int) -> bool:
        """Count a message of this size."""
        self._count += 1
        self._bytes += size_bytes
        return self.is_full

    def empty(self) -> None:
        """Begin the next batch."""
        self._count = self._bytes = 0


def size_of(value: Any) -> int:
    """Return about how many bytes a value of a message, or its data, takes."""
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
    """Return about how many bytes the objects of encoded data take, from above: a comma is before each value."""
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
