"""Opening of a log: the segments are read from the folder, and an incomplete end is cut off.

After a crash, blocks that were written after the last mark of the active segment may be missing on the disk. Each of
these blocks is checked, and the log ends before the first incomplete block. Blocks before the mark are checked when
they are read. An incomplete block before the mark is damage, and is never cut off.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from harvest_lib.errors import LogDamaged
from harvest_lib.pipeline.commit_log import index
from harvest_lib.pipeline.commit_log.compaction import remove
from harvest_lib.pipeline.commit_log.files import (
    log_path,
    read_at,
    segment_files,
    unfinished_files,
    unreadable,
    write_all,
)
from harvest_lib.pipeline.commit_log.index import Block, IndexRecord, IndexRecordKind
from harvest_lib.pipeline.commit_log.manifest import ClosedSegment, LogManifest, read, write
from harvest_lib.pipeline.commit_log.segment import LogSegment, SegmentWriter
from harvest_lib.process.durable_files import sync_folder

_AT_ONCE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """An incomplete part that was cut off the end of a file."""

    path: Path
    byte: int
    """The byte at which the file ends now."""
    size_bytes: int
    """Number of bytes that were cut off."""
    offset: int
    """The offset that the next entry of the log gets."""


def closed_segment(folder: Path, closed: ClosedSegment) -> LogSegment:
    """Return a closed segment, described by its index. Damage of entries is reported when they are read. Raises
    LogError."""
    segment = LogSegment(folder, closed.base, closed.generation, end=closed.end)
    described = index.describe(index.decode(_index_of(segment)), closed.base)
    segment.blocks, segment.newest = described.blocks, described.newest
    if (known := segment.size_bytes) < closed.size_bytes:
        after = segment.blocks[-1].next if segment.blocks else closed.base
        segment.blocks.append(Block(known, closed.size_bytes - known, after, closed.end, 0, IndexRecordKind.LOST))
    return segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSegment:
    """The valid part of the active segment, as the last writer left it."""

    segment: LogSegment
    index_bytes: int
    """Length of the valid part of the index, in bytes."""
    synced_bytes: int
    """Length of the entries that are known to be synced, in bytes."""
    synced_index_bytes: int
    """Length of the index that is known to be synced, in bytes."""


def active_segment(folder: Path, base: int) -> ActiveSegment:
    """Return the active segment (the segment for new entries), without an incomplete end. Raises LogError."""
    segment = LogSegment(folder, base, 0, end=base)
    data = _index_of(segment)
    marked, later = None, list[IndexRecord]()  # decoded, a whole index would take several times its size
    for record in index.decode(data):
        if record.block.kind == IndexRecordKind.MARK:
            marked = record
            later.clear()
        else:
            later.append(record)
    if marked is None:
        raise LogDamaged(
            "it is unknown where the log ends: the index of the segment that is added to is lost",
            path=segment.index,
            byte=0,
            next_step="bring the file back from a copy; or move the log's folder away, and all is copied again",
        )
    handle = segment.open()
    try:
        last = _last_whole(handle, marked, later)
    finally:
        os.close(handle)
    described = index.describe(index.decode(data[: last.end]), base)
    segment.blocks, segment.newest = described.blocks, described.newest
    segment.end = last.block.next
    return ActiveSegment(
        segment=segment,
        index_bytes=last.end,
        synced_bytes=described.synced,
        synced_index_bytes=marked.end,
    )


def _index_of(segment: LogSegment) -> bytes:
    """Return the bytes of a segment's index; no bytes if the file is missing. Raises LogError if the file cannot be
    read."""
    try:
        return segment.index.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise unreadable(segment.index, error) from error


def _last_whole(handle: int, marked: IndexRecord, later: list[IndexRecord]) -> IndexRecord:
    """Return the last valid record of the index: the last mark, or one of the records after it. The entries of these
    records, up to the returned record, are complete on the disk."""
    last = marked
    begin = end = marked.block.length
    checksum = 0
    for record in later:
        block = record.block
        if record.begin != last.end or block.position not in {begin, end}:
            break  # the record before this record is missing
        if block.position == end:
            begin, checksum = end, 0
        checksum = crc32(read_at(handle, block.end - end, end), checksum)
        if checksum != block.checksum:
            break
        end, last = block.end, record
    return last


def remove_leftovers(folder: Path, manifest: LogManifest) -> None:
    """Remove files that a killed process left unfinished, and files that compaction has replaced. Raises LogDamaged if
    a segment is newer than the manifest, OSError."""
    named = {closed.base: closed.generation for closed in manifest.closed} | {manifest.active: 0}
    for path in unfinished_files(folder):
        path.unlink()
    for path, (base, generation) in segment_files(folder).items():
        log = log_path(folder, base, generation)
        if base > manifest.active and log.exists() and log.stat().st_size:
            raise LogDamaged(
                "the file that names the log's segments is older than they are: there are messages it does not know of",
                path=log,
                byte=0,
                next_step="bring back the `log.json` that belongs to these files; or move the log's folder away, and "
                "all is copied again",
            )
        replaced = generation != named.get(base, -1)
        if replaced and (base not in named or log_path(folder, base, named[base]).exists()):
            path.unlink()


def repair(found: ActiveSegment) -> tuple[SegmentWriter, tuple[Cut, ...]]:
    """Cut off an incomplete end, and sync the remaining entries. Return two values: a writer of the segment, and the
    cuts. Raises OSError.

    Bytes after the last mark are written again. If an earlier sync has failed, such bytes may be only in the system's
    cache, marked as clean, so that the next sync would not write them.
    """
    segment = found.segment
    cuts = []
    for path, end in ((segment.path, segment.size_bytes), (segment.index, found.index_bytes)):
        if (more := path.stat().st_size - end) > 0:
            os.truncate(path, end)
            cuts.append(Cut(path=path, byte=end, size_bytes=more, offset=segment.end))
    writer = SegmentWriter(segment, index_bytes=found.index_bytes)
    try:
        if cuts or found.index_bytes > found.synced_index_bytes:
            _write_again(segment.path, found.synced_bytes, segment.size_bytes)
            _write_again(segment.index, found.synced_index_bytes, found.index_bytes)
            writer.sync()
    except OSError:
        writer.close()
        raise
    return writer, tuple(cuts)


def _write_again(path: Path, begin: int, end: int) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        for at in range(begin, end, _AT_ONCE_BYTES):
            write_all(handle, read_at(handle, min(_AT_ONCE_BYTES, end - at), at), at)
    finally:
        os.close(handle)


def open_segments(folder: Path) -> tuple[LogManifest, tuple[LogSegment, ...], SegmentWriter, tuple[Cut, ...]]:
    """Return the manifest and the segments of a log, a writer of the active segment, and the cuts.

    Creates a missing log. Raises LogTooNew, LogDamaged, OSError.
    """
    found = read(folder)
    if found is None:
        return _created(folder)
    remove_leftovers(folder, found)
    sync_folder(folder)  # a killed process may have written the manifest, and ended before this sync
    closed = [closed_segment(folder, each) for each in found.closed]
    writer, cuts = repair(active_segment(folder, found.active))
    return found, (*closed, writer.segment), writer, cuts


def _created(folder: Path) -> tuple[LogManifest, tuple[LogSegment, ...], SegmentWriter, tuple[Cut, ...]]:
    for path in segment_files(folder):
        if path.suffix == ".log" and path.stat().st_size:
            raise LogDamaged(
                "the file that names the log's segments is missing, and there are segments",
                path=path,
                byte=0,
                next_step="bring `log.json` back from a copy of the folder; or move the log's folder away, and all is "
                "copied again",
            )
    writer = start_segment(folder, 0)
    begun = LogManifest(closed=(), active=0)
    write(folder, begun)
    return begun, (writer.segment,), writer, ()


def start_segment(folder: Path, base: int) -> SegmentWriter:
    """Create an empty segment, sync it, and return its writer. Raises OSError, after it has removed the files."""
    segment = LogSegment(folder, base, 0, end=base)
    try:
        writer = SegmentWriter(segment)
        try:
            writer.sync()
            sync_folder(folder)
        except BaseException:
            writer.close()
            raise
    except BaseException:
        remove(segment)
        raise
    return writer
