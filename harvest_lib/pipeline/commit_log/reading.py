"""Reads a log: for the process that writes it, and meanwhile for other processes."""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from harvest_lib.errors import LogDamaged, LogError, OffsetBeyondLog
from harvest_lib.pipeline.commit_log import manifest
from harvest_lib.pipeline.commit_log.entry import LogEntry
from harvest_lib.pipeline.commit_log.files import unreadable
from harvest_lib.pipeline.commit_log.index import Block, IndexRecordKind
from harvest_lib.pipeline.commit_log.opening import active_segment, closed_segment
from harvest_lib.pipeline.commit_log.segment import LogSegment

_END = attrgetter("end")
_LOOKS = 100


class LogView:
    """Reads a log. Any number of threads may read while a writer appends or compacts."""

    def __init__(self, folder: Path, segments: tuple[LogSegment, ...]) -> None:
        self.folder = folder
        self._segments = segments  # in order of offsets; replaced as a whole, never changed
        self._lock = threading.RLock()

    @staticmethod
    def look(folder: Path) -> "LogView":
        """Return a log as it is now, without taking it from its writer. Raises LogError, also without a log."""
        return LogView(folder, _look(folder))

    @staticmethod
    def is_there(folder: Path) -> bool:
        """Return True if a folder has a log. Raises LogTooNew, LogDamaged."""
        return manifest.read(folder) is not None

    @property
    def begin(self) -> int:
        """Return the first offset that is there, `end` without any."""
        for segment in self._segments:
            for block in segment.blocks:
                if block.kind != IndexRecordKind.PASSED_OVER:
                    return block.first
        return self.end

    @property
    def end(self) -> int:
        """Return the offset that the next entry gets."""
        return self._segments[-1].end

    @property
    def segments(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    def read(self, begin: int, end: int | None = None) -> Iterator[LogEntry]:
        """Yield the entries from one offset to before another: by default, to the present end of the log.

        Offsets rise, with gaps after compaction. Raises OffsetBeyondLog, and LogDamaged where it
        comes to a damaged block.
        """
        ends = self.end
        if begin > ends:
            raise OffsetBeyondLog(
                f"the log ends at offset {ends}: there is no offset {begin} to go on from",
                evidence=str(self.folder),
                next_step="the log was cut, or is another log: bring back the log that belongs to these offsets; or "
                "have the writer start over, by moving its offsets away",
            )
        return self._read(begin, ends if end is None else min(end, ends))

    def newest(self) -> Mapping[bytes, LogEntry]:
        """Return the newest entry of each key. Raises LogDamaged where it cannot be known."""
        with self._lock:
            for _ in range(_LOOKS):
                offsets = newest_of(self._segments)
                found = {key: entry for key, offset in offsets.items() for entry in self._read(offset, offset + 1)}
                if len(found) == len(offsets):  # otherwise another process compacted some of them
                    return found
        raise _too_fast(self.folder)

    def _read(self, at: int, end: int) -> Iterator[LogEntry]:
        handle, opened = -1, None
        try:
            while at < end and (found := self._find(at)):
                segment, block = found
                if block.kind != IndexRecordKind.PASSED_OVER:
                    if segment is not opened:
                        if opened is not None:
                            os.close(handle)
                            opened = None
                        try:
                            handle = segment.open()
                        except LogDamaged:
                            if self._has(segment):
                                raise
                            continue  # it was compacted just now
                        opened = segment
                    entries = segment.read(handle, block, at)
                    yield from entries if block.next <= end else [entry for entry in entries if entry.offset < end]
                at = block.next
        finally:
            if opened is not None:
                os.close(handle)

    def _find(self, offset: int) -> tuple[LogSegment, Block] | None:
        segments = self._segments
        for at in range(bisect_right(segments, offset, key=_END), len(segments)):
            block = segments[at].block_from(offset)
            if block is not None:
                return segments[at], block
        return None

    def _has(self, segment: LogSegment) -> bool:
        """Read the manifest again; return True if a segment is part of the log now."""
        self._segments = _look(self.folder)
        return any(each.path == segment.path for each in self._segments)


def newest_of(segments: Sequence[LogSegment]) -> dict[bytes, int]:
    """Return the last offset of each key. Raises LogDamaged where it cannot be known: an index is damaged."""
    offsets: dict[bytes, int] = {}
    for segment in segments:
        for block in segment.blocks:
            if block.kind == IndexRecordKind.LOST:
                raise segment.lost(block)
        offsets.update(segment.newest)
    return offsets


def _look(folder: Path) -> tuple[LogSegment, ...]:
    found = manifest.read(folder)
    for _ in range(_LOOKS):
        if found is None:
            break
        try:
            closed = [closed_segment(folder, each) for each in found.closed]
            segments = (*closed, active_segment(folder, found.active).segment)
        except LogDamaged:
            before, found = found, manifest.read(folder)
            if before == found:
                raise
            continue
        except OSError as error:
            raise unreadable(folder, error) from error
        before, found = found, manifest.read(folder)
        if before == found:
            return segments
    if found is not None:
        raise _too_fast(folder)
    raise LogError(
        "there is no commit log", evidence=str(folder), next_step="give the folder of a pipeline that has run"
    )


def _too_fast(folder: Path) -> LogError:
    return LogError("the log changes too fast to be read", evidence=str(folder), next_step="try again")
