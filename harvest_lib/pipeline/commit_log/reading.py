"""The reading side of the commit log, for the process that writes the log and for other processes at the same time."""

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A commit log, opened for reading. Any number of threads may read during appends and compactions."""

    def __init__(self, folder: Path, segments: tuple[LogSegment, ...]) -> None:
        self.folder = folder
        self._segments = segments  # in order of offsets; replaced as a whole, never changed
        self._lock = threading.RLock()

    @staticmethod
    def look(folder: Path) -> "LogView":
        """Return a view of the present state of a log. Another process may write the log at the same time. Raises
        LogError, for example if there is no log."""
        return LogView(folder, _look(folder))

    @staticmethod
    def is_there(folder: Path) -> bool:
        """Return True if a folder contains a log. Raises LogTooNew, LogDamaged."""
        return manifest.read(folder) is not None

    @property
    def begin(self) -> int:
        """Return the first offset that is not skipped, `end` if the log is empty."""
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
        """Yield the entries from offset `begin` to before `end`, by default to the end of the log at the call.

        Offsets ascend, with gaps after compaction. Raises OffsetBeyondLog if the log ends before `begin`, and
        LogDamaged on a damaged block.
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

    def newest(self, kept: Callable[[LogEntry], LogEntry] = lambda entry: entry) -> Mapping[bytes, LogEntry]:
        """Return the newest entry of each key, in the form in which `kept` returns it. Other forms are not in memory
        together. Raises LogDamaged if damage hides the newest entry of a key."""
        with self._lock:
            for _ in range(_LOOKS):
                offsets = newest_of(self._segments)
                found = {key: kept(entry) for key, at in offsets.items() for entry in self._read(at, at + 1)}
                if len(found) == len(offsets):  # otherwise another process has removed entries by compaction
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
                            continue  # the segment was compacted in between
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
        """Read the manifest again, and return True if a segment still belongs to the log."""
        self._segments = _look(self.folder)
        return any(each.path == segment.path for each in self._segments)


def newest_of(segments: Sequence[LogSegment]) -> dict[bytes, int]:
    """Return the last offset of each key. Raises LogDamaged if an index is damaged, because such an index may lack the
    last offset of a key."""
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
