"""The format of a segment's index: offsets and checksum of each block in the segment. All numbers are big-endian.

    magic            4 bytes   c7 4c 49 78
    record length    4 bytes   of the whole record
    kind             1 byte    0 entries, 1 mark, 2 passed over
    position         8 bytes   the byte of the segment where the block begins
    length           8 bytes   of the block; in a mark, of the synced part of the segment
    first offset     8 bytes   of the block
    next offset      8 bytes   after the last entry of the block
    checksum         4 bytes   CRC-32 of the block
    keys             4 bytes   number of keys that follow, each with:
      offset         8 bytes   of the key's newest entry
      key length     4 bytes
      key            as many bytes as the key length
    record checksum  4 bytes   CRC-32 of the record up to here

Records are only appended. If a record has the same position as the record before it, the block has grown, and the later
record is valid. A mark confirms that the first `length` bytes of the segment, and the index before the mark, are on the
disk. So wrong bytes before a mark are damage. Wrong bytes after the last mark may be writes that a crash cut short.

The module is pure: bytes in, bytes out.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

_MAGIC = b"\xc7LIx"
_HEAD = Struct(">4sIBQQQQII")
_KEY = Struct(">QI")
_CHECKSUM = Struct(">I")


class IndexRecordKind(IntEnum):
    """Kind of a record in the index, and state of its block."""

    ENTRIES = 0
    """The block has entries with the checksum of the record."""
    MARK = 1
    """A mark: it has no block, and confirms that everything before it is on the disk."""
    PASSED_OVER = 2
    """The block is damaged, and an operator decided to skip it."""
    LOST = 3
    """The index is damaged, and has no checksum for the block. This kind is never written to a file."""


class Block(NamedTuple):
    """A part of a segment that is read and checked as a whole."""

    position: int
    length: int
    first: int
    """The offset of the first entry."""
    next: int
    """The offset after the last entry."""
    checksum: int
    kind: IndexRecordKind = IndexRecordKind.ENTRIES

    @property
    def end(self) -> int:
        """Return the byte of the segment after the block."""
        return self.position + self.length


class IndexRecord(NamedTuple):
    """A record of the index, with its position in the index. `newest`: last offsets, by key."""

    block: Block
    newest: Mapping[bytes, int]
    begin: int
    """The byte of the index where the record begins."""
    end: int
    """The byte of the index after the record."""


def encode(block: Block, newest: Mapping[bytes, int]) -> bytes:
    keys = b"".join([_KEY.pack(offset, len(key)) + key for key, offset in newest.items()])
    size = _HEAD.size + len(keys) + _CHECKSUM.size
    position, length, first, after, checksum, kind = block
    record = _HEAD.pack(_MAGIC, size, kind, position, length, first, after, checksum, len(newest)) + keys
    return record + _CHECKSUM.pack(crc32(record))


def mark(length: int, offset: int) -> bytes:
    """Return a mark. It confirms that the first `length` bytes of the segment, up to `offset`, are on the disk."""
    return encode(Block(0, length, offset, offset, 0, IndexRecordKind.MARK), {})


def decode(data: bytes) -> Iterator[IndexRecord]:
    """Yield the valid records of an index. All other bytes are skipped. `describe` detects which blocks have no
    record."""
    at = data.find(_MAGIC)
    while at >= 0:
        record = _record(data, at)
        if record is None:
            at = data.find(_MAGIC, at + 1)
            continue
        yield record
        at = record.end
        if data[at : at + len(_MAGIC)] != _MAGIC:
            at = data.find(_MAGIC, at)


def _record(data: bytes, at: int) -> IndexRecord | None:
    if at + _HEAD.size > len(data):
        return None
    _, size, kind, position, length, first, after, checksum, keys = _HEAD.unpack_from(data, at)
    end = at + size
    if end > len(data) or size < _HEAD.size + _CHECKSUM.size:
        return None
    body = end - _CHECKSUM.size
    if crc32(data[at:body]) != _CHECKSUM.unpack_from(data, body)[0]:
        return None
    newest, begin, at = {}, at, at + _HEAD.size
    for _ in range(keys):
        offset, key_bytes = _KEY.unpack_from(data, at)
        at += _KEY.size + key_bytes
        newest[data[at - key_bytes : at]] = offset
    return IndexRecord(Block(position, length, first, after, checksum, IndexRecordKind(kind)), newest, begin, end)


class SegmentBlocks(NamedTuple):
    """Contents of a segment according to its index."""

    blocks: list[Block]
    """Blocks in order and without gaps. A block of kind LOST replaces blocks whose record is missing."""
    newest: dict[bytes, int]
    """The last offset of each key, according to the valid records."""
    synced: int
    """Length of the part of the segment that is known to be synced, in bytes."""


def describe(records: Iterable[IndexRecord], base: int) -> SegmentBlocks:
    """Return the contents of a segment from the records of its index. `base` is the segment's first offset."""
    blocks: list[Block] = []
    newest: dict[bytes, int] = {}
    synced, end, after = 0, 0, base
    for block, keys, _, _ in records:
        if block.kind == IndexRecordKind.MARK:
            synced, begins, begins_with = block.length, block.length, block.next
        else:
            begins, begins_with = block.position, block.first
            if blocks and blocks[-1].position == begins:
                del blocks[-1]
                end = begins
        if begins > end:  # a record between is missing
            blocks.append(Block(end, begins - end, after, begins_with, 0, IndexRecordKind.LOST))
            end = begins
        if block.kind != IndexRecordKind.MARK:
            blocks.append(block)
            newest.update(keys)
            end = block.end
        after = block.next
    return SegmentBlocks(blocks, newest, synced)
