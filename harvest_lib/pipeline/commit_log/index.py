"""The format of the index beside a segment: offsets and checksum of each block of it. All numbers are big-endian.

    magic            4 bytes   c7 4c 49 78
    record length    4 bytes   of all of the record
    kind             1 byte    0 entries, 1 mark, 2 passed over
    position         8 bytes   the byte of the segment where the block begins
    length           8 bytes   of the block
    first offset     8 bytes
    next offset      8 bytes   after the block's last
    checksum         4 bytes   CRC-32 of the block
    keys             4 bytes   how many follow:
      offset         8 bytes   of the key's newest entry
      key length     4 bytes
      key            that many
    record checksum  4 bytes   CRC-32 of all of the record before it

Records are only ever added. A record at the same position as the record before replaces it: the block grew. A mark
confirms that all before byte `length` of the segment was on the disk when it was written, and the index up to there
too: wrong bytes before a mark are damage, wrong bytes after the last mark may just not have been written in time.

Pure: bytes in, bytes out.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

_MAGIC = b"\xc7LIx"
_HEAD = Struct(">4sIBQQQQII")
_KEY = Struct(">QI")
_CHECKSUM = Struct(">I")


class IndexRecordKind(IntEnum):
    """Kind of a record, which is the state of its block."""

    ENTRIES = 0
    """It holds entries, by this checksum."""
    MARK = 1
    """No block: all before was on the disk."""
    PASSED_OVER = 2
    """It is damaged, and an operator decided to go on without it."""
    LOST = 3
    """Never written: the index is damaged, and has no checksum of this part of the segment."""


class Block(NamedTuple):
    """A part of a segment that is read as a whole."""

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
        """Return the byte of the segment after it."""
        return self.position + self.length


class IndexRecord(NamedTuple):
    """A record, and its place in the index."""

    block: Block
    newest: Mapping[bytes, int]
    begin: int
    """The byte of the index where it begins."""
    end: int
    """The byte of the index after it."""


def encode(block: Block, newest: Mapping[bytes, int]) -> bytes:
    keys = b"".join([_KEY.pack(offset, len(key)) + key for key, offset in newest.items()])
    size = _HEAD.size + len(keys) + _CHECKSUM.size
    position, length, first, after, checksum, kind = block
    record = _HEAD.pack(_MAGIC, size, kind, position, length, first, after, checksum, len(newest)) + keys
    return record + _CHECKSUM.pack(crc32(record))


def mark(length: int, offset: int) -> bytes:
    """Return a mark: this length of the segment, up to this offset, is on the disk."""
    return encode(Block(0, length, offset, offset, 0, IndexRecordKind.MARK), {})


def decode(data: bytes) -> list[IndexRecord]:
    """Return the records that are whole. Bytes between them are left out: `describe` finds their blocks."""
    records = []
    at = data.find(_MAGIC)
    while at >= 0:
        record = _record(data, at)
        if record is None:
            at = data.find(_MAGIC, at + 1)
            continue
        records.append(record)
        at = record.end
        if data[at : at + len(_MAGIC)] != _MAGIC:
            at = data.find(_MAGIC, at)
    return records


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
    """Contents of a segment, as its index has them."""

    blocks: list[Block]
    """In order, without gaps; a block of kind LOST where a record is missing."""
    newest: dict[bytes, int]
    """The last offset of each key, as far as is known."""
    synced: int
    """The byte of the segment up to which all was on the disk for sure."""


def describe(records: Sequence[IndexRecord], base: int) -> SegmentBlocks:
    """Put records together. `base` is the offset that the segment began with."""
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
        if begins > end:  # a record between them is gone
            blocks.append(Block(end, begins - end, after, begins_with, 0, IndexRecordKind.LOST))
            end = begins
        if block.kind != IndexRecordKind.MARK:
            blocks.append(block)
            newest.update(keys)
            end = block.end
        after = block.next
    return SegmentBlocks(blocks, newest, synced)
