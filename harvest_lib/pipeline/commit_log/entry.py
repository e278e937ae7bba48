"""The format of an entry, in a commit log and in an offset log. All numbers are big-endian and unsigned.

    offset           8 bytes
    message length   4 bytes   number of bytes from the key length to the end of the entry
    timestamp        8 bytes   milliseconds since 1970
    mode             1 byte    bits 0 - 1: Copy 0, Sync 1, Complete 2; bits 2 - 4: the op
    key length       4 bytes
    key              as many bytes as the key length
    data length      4 bytes
    data             as many bytes as the data length

Entries follow each other without separators. The module is pure: bytes in, bytes out.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

from harvest_lib.errors import EntryRefused

Unnumbered = tuple[int, int, bytes, bytes]
"""An entry without an offset: timestamp, mode byte, key, value."""

_HEAD = struct.Struct(">QIQBI")
_LENGTH = struct.Struct(">I")
_LENGTHS_BYTES = 2 * _LENGTH.size
_BEFORE_MESSAGE_BYTES = struct.Struct(">QIQB").size
FIXED_BYTES = _BEFORE_MESSAGE_BYTES + _LENGTHS_BYTES
"""Size of an entry without its key and its data, in bytes."""

_MODE_BITS = 2
_HIGHEST_MODE = 3
_HIGHEST_OP = 7
_PACKERS_KEPT = 1_000


class LogEntry(NamedTuple):
    offset: int
    timestamp: int
    mode: int
    """The mode byte; `parts_of` returns the mode and the op in it."""
    key: bytes
    value: bytes


class Malformed(ValueError):
    """The bytes at byte `at` are not a valid entry."""

    def __init__(self, at: int, why: str) -> None:
        self.at = at
        super().__init__(why)


class Packed(NamedTuple):
    """Consecutive entries as bytes."""

    data: bytes
    first: int
    """The offset of the first entry."""
    next: int
    """The offset after the last entry."""
    newest: dict[bytes, int]
    """The last offset of each key."""


def mode_byte(mode: int, op: int) -> int:
    if not (0 <= mode <= _HIGHEST_MODE and 0 <= op <= _HIGHEST_OP):
        raise ValueError(f"a mode byte has no room for mode {mode} and op {op}")
    return op << _MODE_BITS | mode


def parts_of(mode: int) -> tuple[int, int]:
    return mode & _HIGHEST_MODE, mode >> _MODE_BITS & _HIGHEST_OP


class Packable(ABC):
    """Base class of entries that provide their own `Packing`."""

    __slots__ = ()

    @abstractmethod
    def packing(self, offset: int) -> "Packing":
        """Return the `Packing` that packs the entries, with ascending offsets from `offset` on."""


class _Packers(dict[int, Callable[..., bytes]]):
    """Cache of packing functions, by the length of a key. Such a function packs the part of an entry before its
    data."""

    def __missing__(self, key_bytes: int) -> Callable[..., bytes]:
        if len(self) >= _PACKERS_KEPT:
            self.clear()
        packer = self[key_bytes] = struct.Struct(f"{_HEAD.format}{key_bytes}sI").pack
        return packer


_packers = _Packers()


def pack(entries: Iterable[LogEntry]) -> bytes:
    """Return entries as bytes, with their own offsets. Raises EntryRefused."""
    parts: list[bytes] = []
    for offset, timestamp, mode, key, value in entries:
        parts.append(Packing([(timestamp, mode, key, value)], offset).take(None).data)
    return b"".join(parts)


class Packing:
    """Assigns offsets to entries. Each call of `take` packs as many entries as fit into a limit."""

    def __init__(self, entries: Iterable[Unnumbered], offset: int) -> None:
        """`offset` is the offset of the first entry."""
        self._entries = iter(entries)
        self._held: Unnumbered | None = None
        self._offset = offset

    def take(self, most_bytes: int | None) -> Packed:
        """Pack as many of the next entries as fit into `most_bytes`; with None, a single entry of any size.

        An entry that does not fit is packed by the next call. The result is empty if the next entry does not fit, or if
        no entries are left (`done`). Raises EntryRefused, and errors of the iterator of entries; the entries that this
        call has taken are not packed then.
        """
        room = 0 if most_bytes is None else most_bytes
        parts: list[bytes] = []
        newest: dict[bytes, int] = {}
        first = offset = self._offset
        add, packers = parts.append, _packers
        timestamp, mode, key, value = 0, 0, b"", b""
        try:
            for timestamp, mode, key, value in self._rest():
                key_bytes, value_bytes = len(key), len(value)
                room -= FIXED_BYTES + key_bytes + value_bytes
                if room < 0 and (most_bytes is not None or parts):
                    self._held = timestamp, mode, key, value
                    break
                message_bytes = _LENGTHS_BYTES + key_bytes + value_bytes
                add(packers[key_bytes](offset, message_bytes, timestamp, mode, key_bytes, key, value_bytes))
                add(value)
                newest[key] = offset
                offset += 1
        except struct.error as error:
            raise EntryRefused(
                "a message does not fit into the commit log's format",
                evidence=f"timestamp {timestamp}, mode {mode}, key of {len(key)} bytes, data of {len(value)}: {error}",
                next_step="a timestamp has 64 bits without sign, key and data 4 GiB together: correct it at its source",
            ) from error
        self._offset = offset
        return Packed(b"".join(parts), first, offset, newest)

    @property
    def done(self) -> bool:
        """Return True if no entries are left. Raises errors of the iterator of entries."""
        if self._held is None:
            self._held = next(self._entries, None)
        return self._held is None

    def _rest(self) -> Iterable[Unnumbered]:
        if self._held is None:
            return self._entries
        held, self._held = self._held, None
        return chain([held], self._entries)


def unpack(data: bytes, begin: int = 0, end: int = 1 << 64) -> list[LogEntry]:
    """Return the entries in `data` from offset `begin` on.

    Raises Malformed for bytes that are not an entry, and for offsets that do not ascend or are not below `end`.
    """
    entries: list[LogEntry] = []
    add, head, length = entries.append, _HEAD.unpack_from, _LENGTH.unpack_from
    at, size, least = 0, len(data), 0
    while at < size:
        if size - at < FIXED_BYTES:
            raise Malformed(at, f"{size - at} bytes are too few for an entry")
        offset, message_bytes, timestamp, mode, key_bytes = head(data, at)
        after = at + _BEFORE_MESSAGE_BYTES + message_bytes
        key_end = at + _HEAD.size + key_bytes
        if after > size or key_end + _LENGTH.size > after:
            raise Malformed(at, f"its lengths lead to byte {max(after, key_end)} of {size}")
        if after - key_end - _LENGTH.size != length(data, key_end)[0]:
            raise Malformed(at, "its lengths contradict each other")
        if not least <= offset < end:
            raise Malformed(at, f"its offset {offset} is none from {least} on below {end}")
        if offset >= begin:
            add(
                LogEntry(offset, timestamp, mode, data[at + _HEAD.size : key_end], data[key_end + _LENGTH.size : after])
            )
        at, least = after, offset + 1
    return entries


def data_length_at(data: bytes) -> int:
    """Return the byte of the data length in the first entry of `data`, according to the length of its key. `data` may
    end before that byte."""
    return _HEAD.size + int(_HEAD.unpack_from(data)[-1])


def whole_entries(data: bytes) -> int:
    """Return the number of bytes that complete entries take at the start of `data`, according to their lengths. If the
    first entry is incomplete, return its full length, which is larger than `data`."""
    at, size = 0, len(data)
    while at + FIXED_BYTES <= size:
        end = at + _BEFORE_MESSAGE_BYTES + _HEAD.unpack_from(data, at)[1]
        if end > size:
            return at or end
        at = end
    return at
