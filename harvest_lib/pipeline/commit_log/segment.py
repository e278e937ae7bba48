"""A segment of the commit log: a file of entries, and its index, which lists the blocks of the file.

Promises
- Entries are returned exactly as they were written: a block is checked as a whole before an entry of it is returned.
- A write that fails leaves the segment as it was before.
- When `sync` has returned, all entries are on the disk, and marked as synced.
"""

import os
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from zlib import crc32

from harvest_lib.errors import LogDamaged
from harvest_lib.pipeline.commit_log import index
from harvest_lib.pipeline.commit_log.entry import LogEntry, Malformed, Packed, unpack
from harvest_lib.pipeline.commit_log.files import index_path, log_path, read_at, unreadable, write_all
from harvest_lib.pipeline.commit_log.index import Block, IndexRecordKind

BLOCK_BYTES = 1 << 17
"""Size of a block, in bytes. A block is read and checked as a whole. This size is so large that an index has a
thousandth of the log's size, and so small that reading an entry takes 0.2 ms."""

_NEXT = attrgetter("next")


class LogSegment:
    """A segment as described by its index. A writer may add blocks during reads."""

    def __init__(self, folder: Path, base: int, generation: int, *, end: int) -> None:
        self.folder = folder
        self.base = base
        self.generation = generation
        self.path = log_path(folder, base, generation)
        self.index = index_path(folder, base, generation)
        self.blocks: list[Block] = []
        self.newest: dict[bytes, int] = {}
        """The last offset of each key."""
        self.end = end
        """The offset after the last entry."""

    @property
    def size_bytes(self) -> int:
        """Return the length of all blocks, in bytes."""
        return self.blocks[-1].end if self.blocks else 0

    def block_from(self, offset: int) -> Block | None:
        """Return the block that contains `offset`. If no block contains it, return the first block after the offset, or
        None if there is no later block."""
        at = bisect_right(self.blocks, offset, key=_NEXT)
        return self.blocks[at] if at < len(self.blocks) else None

    def open(self) -> int:
        """Return a file descriptor for reading the segment's entries.

        Raises LogDamaged if the file is missing. Raises LogError if the file cannot be opened: an operator can fix
        that, and need not skip the messages.
        """
        try:
            return os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise self.damaged(0, range(self.base, self.end), "the file is missing") from error
        except OSError as error:
            raise unreadable(self.path, error) from error

    def read(self, handle: int, block: Block, begin: int = 0) -> list[LogEntry]:
        """Return the entries of a block, from offset `begin` on. Raises LogDamaged."""
        if block.kind == IndexRecordKind.PASSED_OVER:
            return []
        try:
            return unpack(self.read_bytes(handle, block), begin, block.next)
        except Malformed as error:
            raise self.damaged(block.position + error.at, range(block.first, block.next), str(error)) from error

    def read_bytes(self, handle: int, block: Block) -> bytes:
        """Return the bytes of a block, after a check of their checksum. Raises LogDamaged."""
        if block.kind == IndexRecordKind.LOST:
            raise self.lost(block)
        offsets = range(block.first, block.next)
        try:
            data = read_at(handle, block.length, block.position)
        except OSError as error:
            raise self.damaged(block.position, offsets, str(error.strerror)) from error
        if crc32(data) != block.checksum:
            if len(data) < block.length:
                raise self.damaged(block.position + len(data), offsets, "the file ends there")
            at, why = block.position, f"the checksum of the {block.length} bytes from there is another"
            try:
                unpack(data, end=block.next)
            except Malformed as error:
                at, why = at + error.at, f"no entry begins there: {error}"
            raise self.damaged(at, offsets, why)
        return data

    def lost(self, block: Block) -> LogDamaged:
        """Return the error for a block of kind LOST, whose record in the index is missing."""
        why = f"{self.index.name} is damaged, and nothing vouches for {block.length} bytes from there"
        return self.damaged(block.position, range(block.first, block.next), why)

    def damaged(self, byte: int, offsets: range, why: str) -> LogDamaged:
        """Return the error for damaged messages at byte `byte`. `offsets` are their offsets, `why` the evidence."""
        return LogDamaged(
            f"messages {offsets.start} to {offsets.stop - 1} of the log are damaged",
            path=self.path,
            byte=byte,
            offsets=offsets,
            evidence=why,
            next_step="bring the file back from a copy and start again; or give up these messages with "
            f"`harvest pipeline skip {offsets.start} -f FILE`, after which the log goes on at {offsets.stop}",
        )


class SegmentWriter:
    """Appends entries to a segment. A single thread at a time may use it."""

    def __init__(self, segment: LogSegment, *, index_bytes: int = 0) -> None:
        """Open the segment's files for writing. `index_bytes` is the present length of the index; with 0, the files are
        created empty. Raises OSError."""
        self.segment = segment
        self.index_bytes = index_bytes
        self._grows = False  # True: the last block is not synced, and may grow
        self.synced = index_bytes > 0
        self.failed = False
        """True if a sync failed. The system may then consider bytes as written that are not on the disk."""
        flags = os.O_RDWR | os.O_CREAT | (0 if index_bytes else os.O_TRUNC)
        self._log = os.open(segment.path, flags, 0o644)
        try:
            self._index = os.open(segment.index, flags, 0o644)
        except OSError:
            os.close(self._log)
            raise

    @property
    def block_room(self) -> int:
        """Return how many bytes still fit into the last block; a whole block if the next write begins a new block."""
        return BLOCK_BYTES - self.segment.blocks[-1].length if self._grows else BLOCK_BYTES

    def write(self, packed: Packed) -> None:
        """Append entries, to the last block or as a new block. Raises OSError; no entry is appended then."""
        segment, data = self.segment, packed.data
        position, length = segment.size_bytes, len(data)
        grows = self._grows and segment.blocks[-1].length + length <= BLOCK_BYTES
        if grows:
            last = segment.blocks[-1]
            block = Block(last.position, last.length + length, last.first, packed.next, crc32(data, last.checksum))
        else:
            block = Block(position, length, packed.first, packed.next, crc32(data))
        record = index.encode(block, packed.newest)
        self.synced = False
        self._write(data, position, record)
        if grows:
            segment.blocks[-1] = block
        else:
            segment.blocks.append(block)
        segment.newest.update(packed.newest)
        segment.end = packed.next
        self._grows = True

    def copy(self, data: bytes, block: Block) -> None:
        """Append a block of another segment without any change. Raises OSError."""
        copied = block._replace(position=self.segment.size_bytes)
        self.synced = False
        self._write(data, copied.position, index.encode(copied, {}))
        self.segment.blocks.append(copied)
        self.segment.end = block.next
        self._grows = False

    def note(self, newest: Mapping[bytes, int]) -> None:
        """Add the last offset of each key to the index, after `copy`. Raises OSError."""
        if self.segment.blocks:
            self._write(b"", 0, index.encode(self.segment.blocks[-1], newest))
            self.segment.newest.update(newest)
        self._grows = False

    def sync(self) -> None:
        """Sync the segment and its index. Raises OSError; the state of the disk is unknown then."""
        self._flush(self._log)
        self._flush(self._index)
        self._write(b"", 0, index.mark(self.segment.size_bytes, self.segment.end))  # only now confirm it
        self._flush(self._index)
        self._grows = False  # a crash could make a block that grows incomplete, including its part before the mark
        self.synced = True

    def close(self) -> None:
        """Close the files."""
        os.close(self._log)
        os.close(self._index)

    def _flush(self, handle: int) -> None:
        self.failed = True
        os.fdatasync(handle)
        self.failed = False

    def _write(self, data: bytes, position: int, record: bytes) -> None:
        try:
            if data:
                write_all(self._log, data, position)
            write_all(self._index, record, self.index_bytes)
        except OSError:
            with suppress(OSError):  # remaining bytes would be overwritten, or cut off when the log is opened
                os.ftruncate(self._index, self.index_bytes)
                if data:
                    os.ftruncate(self._log, position)
            raise
        self.index_bytes += len(record)
