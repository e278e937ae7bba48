"""Compaction of a closed segment: a smaller segment is written and synced, then it replaces the closed segment."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from harvest_lib.pipeline.commit_log.entry import LogEntry, Packed, pack
from harvest_lib.pipeline.commit_log.index import Block, IndexRecordKind
from harvest_lib.pipeline.commit_log.segment import LogSegment, SegmentWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    segments: int
    """Number of segments that the compaction rewrote or removed."""
    freed_bytes: int


class CompactionStopped(Exception):
    """Raised inside a compaction to end it early, because `going_on` returned False."""


def smaller(segment: LogSegment, up_to: int, kept: Sequence[int], going_on: Callable[[], bool]) -> LogSegment | None:
    """Copy a segment into a new segment. Entries before offset `up_to` are left out, unless their offset is in `kept`
    (ascending).

    Returns the new segment, which is synced. If no entry remains, the new segment has no blocks and no files. Returns
    None if no entry can be left out. Raises LogDamaged, OSError, and CompactionStopped if `going_on` returns False.
    After an error there are no new files.
    """
    with ExitStack() as held:
        left: list[list[LogEntry]] = []
        less, handle = False, -1
        below = [block for block in segment.blocks if block.first < up_to]
        for block in _while(going_on, below):
            if block.kind == IndexRecordKind.PASSED_OVER or (block.next <= up_to and not _has_any(kept, block)):
                less = True
                continue
            if handle < 0:
                handle = segment.open()
                held.callback(os.close, handle)
            entries = segment.read(handle, block)
            of_these = [each for each in entries if each.offset >= up_to or _has(kept, each.offset)]
            less = less or len(of_these) < len(entries)
            if of_these:
                left.append(of_these)
        if not less:
            return None
        compacted = LogSegment(segment.folder, segment.base, segment.generation + 1, end=segment.end)
        above = [block for block in segment.blocks[len(below) :] if block.kind != IndexRecordKind.PASSED_OVER]
        if left or above:
            if handle < 0:
                handle = segment.open()
                held.callback(os.close, handle)
            newest = {key: at for key, at in segment.newest.items() if at >= up_to or _has(kept, at)}
            copied = ((segment.read_bytes(handle, each), each) for each in _while(going_on, above))
            try:
                _write(compacted, left, newest, copied)
            except BaseException:
                remove(compacted)
                raise
        return compacted


def _while(going_on: Callable[[], bool], blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if not going_on():
            raise CompactionStopped
        yield block


def remove(segment: LogSegment) -> None:
    """Remove the files of a segment. Errors are ignored."""
    for path in (segment.path, segment.index):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _write(
    compacted: LogSegment,
    left: list[list[LogEntry]],
    newest: dict[bytes, int],
    above: Iterable[tuple[bytes, Block]],
) -> None:
    writer = SegmentWriter(compacted)
    try:
        for entries in left:
            writer.write(Packed(pack(entries), entries[0].offset, entries[-1].offset + 1, {}))
        for data, block in above:
            writer.copy(data, block)
        writer.note(newest)
        writer.sync()
    finally:
        writer.close()


def _has(kept: Sequence[int], offset: int) -> bool:
    at = bisect_left(kept, offset)
    return at < len(kept) and kept[at] == offset


def _has_any(kept: Sequence[int], block: Block) -> bool:
    at = bisect_left(kept, block.first)
    return at < len(kept) and kept[at] < block.next
