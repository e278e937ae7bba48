"""The id of a message: its producer, its number among the producer's messages, and its role in a transaction.

The id is a version 1 UUID of RFC 4122, 16 bytes, in the Kafka header `message-id`:

    60 bits   time, in 100 ns since 1582-10-15        } together the clock, which rises with every id of a producer
     4 bits   a count, upper bits of the clock sequence }
    10 bits   a flag, the lower bits of the clock sequence
    48 bits   the producer id, in place of the node id

So every reader of UUIDs sees when a message was made. A message with a clock of zero, or with the zero UUID, is not
sequenced by its sender. Pure, no I/O: the caller passes the time in.
"""

import secrets
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

HEADER_NAME = "message-id"
ZERO = bytes(16)
"""The zero UUID, which means that a message has no id."""

_WHOLE = struct.Struct(">IHHHHI")
_HALVES = struct.Struct(">IIHHI")
_NO_UUID = "an id of a message is a version 1 UUID, this id is not"
_MOST_BEGINS = 10_000
_EPOCH_NANOSECONDS = 0x01B21DD213814000 * 100
"""Nanoseconds from the epoch of version 1 UUIDs, the beginning of the Gregorian calendar, to the epoch of Unix."""
_COUNT_BITS = 4
CLOCKS_PER_SECOND = 10_000_000 << _COUNT_BITS
_FLAG_BITS = 10
_HIGHEST_FLAG = (1 << _FLAG_BITS) - 1
_VERSION_1 = 0x1000
_VARIANT = 0x8000
_PRODUCER_BITS = 48
_MULTICAST = 1 << 40


class MalformedId(ValueError):
    """Bytes are not the id of a message."""


class Flag(IntEnum):
    """Role of a message in a transaction."""

    OUTSIDE_TXN = 0
    """The message belongs to no transaction: readers process it at once."""
    CONTINUE_TXN = 1
    """The message is pending until its producer acknowledges it."""
    ACK_TXN = 2
    """The message is an acknowledgement: it commits its producer's pending messages with clocks up to its own clock,
    and rolls back pending messages with higher clocks."""


class MessageId(NamedTuple):
    """The parts of a message id. The messages of a producer are ordered by their clocks."""

    producer: int
    clock: int
    flag: int
    """A `Flag`, or an unknown number."""


def pack(producer: int, clock: int, flag: Flag) -> bytes:
    """Return the 16 bytes of an id. Raises struct.error if the clock exceeds 64 bits or the producer 48 bits."""
    time, count = clock >> _COUNT_BITS, clock & 0xF
    return _WHOLE.pack(
        time & 0xFFFFFFFF,
        time >> 32 & 0xFFFF,
        time >> 48 | _VERSION_1,
        _VARIANT | count << _FLAG_BITS | flag,
        producer >> 32,
        producer & 0xFFFFFFFF,
    )


def unpack(message_id: bytes) -> MessageId:
    """Return the parts of an id. Raises MalformedId for another length, version or variant."""
    return MessageId(*parts(message_id))


def parts(message_id: bytes) -> tuple[int, int, int]:
    """Return producer, clock and flag as a plain tuple. This is a faster `unpack`, for callers with millions of ids.
    Raises the same error."""
    try:
        low, above, sequence, upper, lower = _HALVES.unpack(message_id)
    except struct.error:
        raise MalformedId(f"an id of a message has {_WHOLE.size} bytes, this one {len(message_id)}") from None
    begin = _begins.get(above)
    if begin is None:
        begin = _begin(above)
    if sequence >> 14 != _VARIANT >> 14:
        raise MalformedId(_NO_UUID)
    return upper << 32 | lower, begin | low << _COUNT_BITS | sequence >> _FLAG_BITS & 0xF, sequence & _HIGHEST_FLAG


_begins: dict[int, int] = {}
"""Cache from the upper time bits of an id to the clock with these upper bits and zeros below them. The upper bits stay
the same for seven minutes."""


def _begin(above: int) -> int:
    middle, high = above >> 16, above & 0xFFFF
    if high & 0xF000 != _VERSION_1:
        raise MalformedId(_NO_UUID)
    if len(_begins) >= _MOST_BEGINS:
        _begins.clear()
    begin = _begins[above] = ((high & 0xFFF) << 48 | middle << 32) << _COUNT_BITS
    return begin


def new_producer_id() -> int:
    """Return a random producer id for a new publisher. The id is marked as a multicast address, because RFC 4122
    requires this for a random node id."""
    return secrets.randbits(_PRODUCER_BITS) | _MULTICAST


def clock_at(unix_nanoseconds: int) -> int:
    """Return the lowest clock of a message id for a time."""
    return (unix_nanoseconds + _EPOCH_NANOSECONDS) // 100 << _COUNT_BITS


class Clock:
    """A clock for message ids. It rises with every tick, and jumps to the present time if the present time is later.
    One thread at a time may use it."""

    def __init__(self, nanoseconds: Callable[[], int]) -> None:
        """`nanoseconds` returns the present time in nanoseconds since 1970."""
        self._nanoseconds = nanoseconds
        self._last = 0

    def tick(self) -> int:
        """Return a value above every earlier value, even if the time went back."""
        return self.ticks(1)

    def ticks(self, count: int) -> int:
        """Reserve `count` consecutive values, all above every earlier value. Return the first value."""
        first = max(self._last + 1, clock_at(self._nanoseconds()))
        self._last = first + count - 1
        return first
