"""The writing side of the commit log: append, sync, compaction, skipping of damage."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import LogError, LogUnwritable, OffsetBeyondLog
from harvest_lib.pipeline.commit_log import compaction, manifest, opening, skipping
from harvest_lib.pipeline.commit_log.compaction import Compacted
from harvest_lib.pipeline.commit_log.entry import Packable, Packing, Unnumbered
from harvest_lib.pipeline.commit_log.files import writing
from harvest_lib.pipeline.commit_log.manifest import ClosedSegment, Lock, LogManifest
from harvest_lib.pipeline.commit_log.opening import Cut
from harvest_lib.pipeline.commit_log.reading import LogView, newest_of
from harvest_lib.pipeline.commit_log.segment import BLOCK_BYTES, LogSegment, SegmentWriter
from harvest_lib.pipeline.commit_log.skipping import Skipped
from harvest_lib.process.durable_files import make_folder, sync_folder

SEGMENT_BYTES = 1 << 30
INDEX_BYTES = 1 << 22
"""Limit of a segment's index, in bytes: an index is in memory as a whole when the log is opened. Each append adds a
record of about 100 bytes, so a segment of single messages has about 40,000 of them."""


class CommitLog(LogView):
    """A commit log, opened for writing, in its own folder. A single process at a time can open it. Any thread of the
    process may call any method."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync_seconds: float = 1.0,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """Open the log in `folder`, or create it if it is missing.

        A segment has at most `segment_bytes`, or a single larger entry; a segment of many small appends is smaller, as
        its index is limited (`INDEX_BYTES`). `append` and `sync_if_due` sync entries that were appended at least
        `sync_seconds` ago; with 0, `append` syncs before it returns. Raises LogInUse, LogTooNew, LogDamaged,
        LogUnwritable.
        """
        self._segment_bytes = segment_bytes
        self._sync_seconds = sync_seconds
        self._clock = clock
        self._dirty_since: float | None = None
        self._unclear = False
        self._closed = False
        self._compacting = threading.Lock()
        with writing(folder, "open the log"):
            make_folder(folder)
            self._held = Lock(folder)
            try:
                self._manifest, segments, self._writer, self.repaired = opening.open_segments(folder)
            except BaseException:
                self._held.release()
                raise
        super().__init__(folder, segments)
        self._synced = self.end

    repaired: tuple[Cut, ...]
    """The incomplete ends of files that were cut off when the log was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- adding

    @property
    def synced(self) -> int:
        """Return the offset before which all entries are synced, so that they survive a loss of power."""
        return self._synced

    def append(self, entries: Iterable[Unnumbered] | Packable) -> range:
        """Append entries (timestamp, mode byte, key and value), and return their offsets.

        The entries are readable at once and survive this process. After a sync, they survive a crash of the machine.
        Raises LogUnwritable. Raises EntryRefused for an entry that does not fit into the format; the entries before it
        may then be in the log, up to `end`.
        """
        with self._lock:
            self._check()
            first = self.end
            packing = entries.packing(first) if isinstance(entries, Packable) else Packing(entries, first)
            while not packing.done:
                self._take(packing)
            if self.end > first:
                self.sync_if_due()
            return range(first, self.end)

    def sync(self) -> None:
        """Sync all appended entries to the disk. Raises LogUnwritable."""
        with self._lock:
            self._check()
            if not self._writer.synced:
                with writing(self.folder, "have the log on the disk"):
                    self._writer.sync()
            self._synced, self._dirty_since = self.end, None

    def sync_if_due(self) -> None:
        """Sync if an entry was appended at least `sync_seconds` ago and is not synced. Raises LogUnwritable."""
        since = self._dirty_since
        if since is not None and self._clock() - since >= self._sync_seconds:
            self.sync()

    def roll(self) -> None:
        """Close the active segment and begin a new segment. Do nothing if the active segment is empty. Raises
        LogUnwritable."""
        with self._lock:
            self.sync()
            active = self._writer.segment
            if not active.blocks:
                return
            closed = ClosedSegment.of(active)
            with writing(self.folder, "begin a segment of the log"):
                writer = opening.start_segment(self.folder, active.end)
                try:
                    self._declare(LogManifest(closed=(*self._manifest.closed, closed), active=active.end))
                except BaseException:
                    writer.close()
                    if not self._unclear:
                        compaction.remove(writer.segment)
                    raise
            self._segments = (*self._segments, writer.segment)
            self._writer.close()
            self._writer = writer

    def close(self) -> None:
        """Sync the log and release it. Idempotent. If the sync fails, this method releases the log and raises
        LogUnwritable."""
        with self._compacting, self._lock:
            if self._closed:
                return
            try:
                if not self._writer.failed and not self._unclear:
                    self.sync()
            finally:
                self._closed = True
                self._writer.close()
                self._held.release()

    def _take(self, packing: Packing) -> None:
        if self._writer.index_bytes >= INDEX_BYTES:
            self.roll()
        active = self._writer.segment
        room = self._segment_bytes - active.size_bytes
        packed = packing.take(min(room, self._writer.block_room))
        if not packed.data:  # the block is full
            packed = packing.take(min(room, BLOCK_BYTES))
        if not packed.data:  # the segment is full, or the entry is larger than any block
            packed = packing.take(None)
            if len(packed.data) > room:
                self.roll()
        with writing(self.folder, "append to the log"):
            self._writer.write(packed)
        if self._dirty_since is None:
            self._dirty_since = self._clock()

    def _declare(self, declared: LogManifest) -> None:
        self._unclear = True
        try:
            manifest.write(self.folder, declared)
        except BaseException:
            with suppress(OSError, LogError):
                self._unclear = manifest.read(self.folder) != self._manifest
            raise
        self._manifest = declared
        self._unclear = False

    def _check(self) -> None:
        if self._closed:
            raise LogError("the log is closed", evidence=str(self.folder), next_step="open it again")
        if self._writer.failed or self._unclear or self._writer.segment.base != self._manifest.active:
            raise LogUnwritable(
                "it is unknown which part of the log is on the disk: it failed before",
                evidence=str(self.folder),
                next_step="check the disk, then start again: acknowledged messages are kept, the rest is checked",
            )

    # -- dropping entries

    def compact(self, up_to: int, *, going_on: Callable[[], bool] = lambda: True) -> Compacted:
        """Remove entries before offset `up_to` from closed segments, except the newest entry of each key in them.

        Offsets do not change, and readers can continue. The newest entry of each key is read first, so that no entry is
        removed in favour of a damaged entry. Compaction ends early if `going_on` returns False. Raises LogDamaged,
        LogUnwritable; segments that were finished before the error stay compacted.
        """
        if up_to > self.end:
            raise OffsetBeyondLog(
                f"the log ends at offset {self.end}: it cannot be compacted up to {up_to}",
                evidence=str(self.folder),
                next_step="the offset is another log's, or the log was replaced: check with `harvest pipeline status`",
            )
        segments = freed = 0
        with self._compacting:
            with self._lock:
                self._check()
                closed = self._segments[:-1]
            newest = newest_of(closed)
            for offset in newest.values():
                next(self._read(offset, offset + 1))
            kept = sorted(newest.values())
            for segment in closed:
                if segment.base >= up_to:
                    break
                with writing(self.folder, "compact the log"):
                    try:
                        compacted = compaction.smaller(segment, up_to, kept, going_on)
                    except compaction.CompactionStopped:
                        break
                    if compacted is not None:
                        self._exchange(segment, compacted)
                        segments, freed = segments + 1, freed + segment.size_bytes - compacted.size_bytes
        return Compacted(segments=segments, freed_bytes=freed)

    def skip(self, offset: int) -> Skipped:
        """Mark the damaged entries at an offset as skipped, so that readers continue after them. Called on an
        operator's request.

        Raises LogError if no entry is damaged at the offset, LogUnwritable.
        """
        with self._compacting, self._lock:
            self.sync()
            found = self._find(offset)
            if found is None:
                raise OffsetBeyondLog(
                    f"the log ends at offset {self.end}: there is no offset {offset} to skip",
                    evidence=str(self.folder),
                    next_step="give the offset that the error named",
                )
            segment = found[0]
            with writing(self.folder, "rewrite the index"):
                after, index_bytes, skipped = skipping.skip(segment, offset)
                if segment is self._writer.segment:
                    self._unclear = True  # until the writer is replaced, since it has the old index
                    writer = SegmentWriter(after, index_bytes=index_bytes)
                    self._writer.close()
                    self._writer, self._unclear = writer, False
            self._segments = tuple(after if each is segment else each for each in self._segments)
            return skipped

    def _exchange(self, segment: LogSegment, compacted: LogSegment) -> None:
        with self._lock:
            instead = [ClosedSegment.of(compacted)] if compacted.blocks else []
            closed: list[ClosedSegment] = []
            for each in self._manifest.closed:
                closed += [each] if each.base != segment.base else instead
            try:
                sync_folder(self.folder)  # the new files have to be durable before the manifest lists them
                self._declare(LogManifest(closed=tuple(closed), active=self._manifest.active))
            except BaseException:
                if not self._unclear:
                    compaction.remove(compacted)
                raise
            self._segments = tuple(
                compacted if each is segment else each
                for each in self._segments
                if each is not segment or compacted.blocks
            )
        compaction.remove(segment)

    def _has(self, segment: LogSegment) -> bool:
        return any(each is segment for each in self._segments)
