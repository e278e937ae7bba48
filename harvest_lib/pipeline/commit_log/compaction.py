"""Compaction of a closed segment: a smaller segment is written and synced, then it replaces the closed segment."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain

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

    The entries of at most two blocks are in memory. Returns the new segment, which is synced. If no entry remains, the
    new segment has no blocks and no files. Returns None if no entry can be left out. Raises LogDamaged, OSError, and
    CompactionStopped if `going_on` returns False. After an error there are no new files.
    """
    below = [block for block in segment.blocks if block.first < up_to]
    above = [block for block in segment.blocks[len(below) :] if block.kind != IndexRecordKind.PASSED_OVER]
    maybe = [block for block in _while(going_on, below) if not _is_over(block, up_to, kept)]
    with ExitStack() as held:
        handle = -1
        if maybe or above:
            handle = segment.open()
            held.callback(os.close, handle)

        def stays(entry: LogEntry) -> bool:
            return entry.offset >= up_to or _has(kept, entry.offset)

        def remaining(block: Block) -> list[LogEntry]:
            return list(filter(stays, segment.read(handle, block)))

        def leaves_out(block: Block) -> bool:
            return not all(map(stays, segment.read(handle, block)))

        if len(maybe) == len(below) and not any(map(leaves_out, _while(going_on, maybe))):
            return None
        compacted = LogSegment(segment.folder, segment.base, segment.generation + 1, end=segment.end)
        left = filter(None, map(remaining, _while(going_on, maybe)))
        first = next(left, None)
        if first is not None or above:
            newest = {key: at for key, at in segment.newest.items() if at >= up_to or _has(kept, at)}
            copied = ((segment.read_bytes(handle, each), each) for each in _while(going_on, above))
            try:
                _write(compacted, chain(filter(None, [first]), left), newest, copied)
            except BaseException:
                remove(compacted)
                raise
        return compacted


def _is_over(block: Block, up_to: int, kept: Sequence[int]) -> bool:
    """Return True if no entry of a block remains. The block's data is not needed to know that."""
    return block.kind == IndexRecordKind.PASSED_OVER or (block.next <= up_to and not _has_any(kept, block))


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
    left: Iterable[list[LogEntry]],
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
