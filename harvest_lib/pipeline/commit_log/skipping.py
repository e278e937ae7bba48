"""Skipping of damage: on an operator's request, readers skip unreadable entries. Only the segment's index changes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from harvest_lib.errors import LogDamaged, LogError
from harvest_lib.pipeline.commit_log import index
from harvest_lib.pipeline.commit_log.entry import LogEntry, Malformed, data_length_at, unpack, whole_entries
from harvest_lib.pipeline.commit_log.files import read_at, replace
from harvest_lib.pipeline.commit_log.index import Block, IndexRecordKind
from harvest_lib.pipeline.commit_log.segment import BLOCK_BYTES, LogSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Result of skipping: what happened to the messages of the damaged blocks."""

    given_up: range
    """Offsets that readers skip from now on."""
    unchecked: range
    """Offsets of entries that readers still return. The original checksums of these entries are lost, but the entries
    have a valid format."""


def skip(segment: LogSegment, offset: int) -> tuple[LogSegment, int, Skipped]:
    """Skip the damaged block that contains `offset`, and the damaged blocks that follow it directly.

    If the index is damaged, entries with a valid format are accepted without a checksum. The segment must be synced.
    Returns the new segment, the length of its index in bytes, and the result. Raises LogError if the block with
    `offset` is not damaged, OSError.
    """
    try:
        handle = segment.open()
    except LogDamaged:
        handle = os.open(os.devnull, os.O_RDONLY)  # no entry of a missing file can be read
    try:
        at = next((at for at, block in enumerate(segment.blocks) if block.next > offset), len(segment.blocks))
        blocks, damaged = segment.blocks[:at], []
        for block in segment.blocks[at:]:
            if _entries(segment, handle, block) is not None:
                break
            damaged.append(block)
            blocks += _instead(handle, block)
        if not damaged:
            raise LogError(
                f"nothing is damaged at offset {offset}: there is nothing to skip",
                evidence=str(segment.path),
                next_step="`harvest pipeline ack` lets one writer skip a readable message",
            )
        fresh = blocks[at:]
        blocks += segment.blocks[at + len(damaged) :]
        after = LogSegment(segment.folder, segment.base, segment.generation, end=segment.end)
        after.blocks = blocks
        data = b"".join(_records(segment, after, handle))
    finally:
        os.close(handle)
    replace(segment.index, data)
    taken = [block for block in fresh if block.kind == IndexRecordKind.ENTRIES]
    passed = [block for block in fresh if block.kind == IndexRecordKind.PASSED_OVER]
    return after, len(data), Skipped(given_up=_span(passed, offset), unchecked=_span(taken, offset))


def _records(before: LogSegment, after: LogSegment, handle: int) -> Iterator[bytes]:
    """Yield the records of the new index. All entries are read to find the newest entry of each key, because the entry
    that was the newest may be skipped now."""
    for block in after.blocks:
        entries = _entries(after, handle, block)
        if entries is None:
            newest = {key: at for key, at in before.newest.items() if block.first <= at < block.next}
        else:
            newest = {entry.key: entry.offset for entry in entries}
        after.newest.update(newest)
        if block.kind != IndexRecordKind.LOST:
            yield index.encode(block, newest)
    yield index.mark(after.size_bytes, after.end)


def _entries(segment: LogSegment, handle: int, block: Block) -> list[LogEntry] | None:
    try:
        return segment.read(handle, block)
    except LogDamaged:
        return None


def _instead(handle: int, block: Block) -> Iterator[Block]:
    """Yield the blocks that replace a damaged block."""
    at, offset = block.position, block.first
    if block.kind == IndexRecordKind.LOST:
        while at < block.end and (taken := _unchecked(handle, block, at, offset)):
            yield taken
            at, offset = taken.end, taken.next
    if at < block.end:
        yield Block(at, block.end - at, offset, block.next, 0, IndexRecordKind.PASSED_OVER)


def _unchecked(handle: int, lost: Block, at: int, offset: int) -> Block | None:
    """Return a block of the entries that begin at byte `at`. Return None if the entries are not valid, if an offset is
    below `offset`, or if an offset is at or beyond the end of the lost block."""
    try:
        data = read_at(handle, min(BLOCK_BYTES, lost.end - at), at)
        size = whole_entries(data)
        if size > len(data):  # a single large entry
            is_entry = at + size <= lost.end and _lengths_agree(handle, data, at, size)
            data = read_at(handle, size, at) if is_entry else b""
        data = data[:size]
        entries = unpack(data)
    except (Malformed, OSError):
        return None
    if not entries or entries[0].offset < offset or entries[-1].offset >= lost.next:
        return None
    return Block(at, len(data), entries[0].offset, entries[-1].offset + 1, crc32(data))


def _lengths_agree(handle: int, data: bytes, at: int, size: int) -> bool:
    """Return True if the lengths of the entry at byte `at` add up to `size`. Nothing vouches for the bytes of a lost
    block: by a length alone, up to a whole segment would be read into memory."""
    place = data_length_at(data)
    length = read_at(handle, 4, at + place)
    return place + len(length) + int.from_bytes(length, "big") == size


def _span(blocks: list[Block], offset: int) -> range:
    return range(blocks[0].first, blocks[-1].next) if blocks else range(offset, offset)
