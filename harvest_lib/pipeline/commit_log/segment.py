"""A segment: a file of entries and the index beside it, which lists its blocks.

Promises
- Entries are read as they were written: a block is checked as a whole before any of its entries is returned.
- A write that fails leaves the segment as it was before.
- Entries are on the disk, and marked as synced, once `sync` has returned.
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
"""Bytes that are read and checked at once: large enough for an index of a thousandth of the log, small enough to read
an entry in two tenths of a millisecond."""

_NEXT = attrgetter("next")


class LogSegment:
    """A segment as its index has it. Its blocks may become more while it is read."""

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
        """The offset after the last."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its file that are entries."""
        return self.blocks[-1].end if self.blocks else 0

    def block_from(self, offset: int) -> Block | None:
        """Return the first block with anything from this offset on."""
        at = bisect_right(self.blocks, offset, key=_NEXT)
        return self.blocks[at] if at < len(self.blocks) else None

    def open(self) -> int:
        """Return a handle to read its entries from.

        Raises LogDamaged when the file is missing, LogError when it may not be opened: that can be fixed, and is no
        reason to give its messages up.
        """
        try:
            return os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise self.damaged(0, range(self.base, self.end), "the file is missing") from error
        except OSError as error:
            raise unreadable(self.path, error) from error

    def read(self, handle: int, block: Block, begin: int = 0) -> list[LogEntry]:
        """Return a block's entries, from that offset on. Raises LogDamaged."""
        if block.kind == IndexRecordKind.PASSED_OVER:
            return []
        try:
            return unpack(self.read_bytes(handle, block), begin, block.next)
        except Malformed as error:
            raise self.damaged(block.position + error.at, range(block.first, block.next), str(error)) from error

    def read_bytes(self, handle: int, block: Block) -> bytes:
        """Return a block as it was written. Raises LogDamaged."""
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
        """Return the error of a block with a damaged index."""
        why = f"{self.index.name} is damaged, and nothing vouches for {block.length} bytes from there"
        return self.damaged(block.position, range(block.first, block.next), why)

    def damaged(self, byte: int, offsets: range, why: str) -> LogDamaged:
        """Return the error of damaged messages."""
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
    """Appends to a segment. Used by one thread."""

    def __init__(self, segment: LogSegment, *, index_bytes: int = 0) -> None:
        """`index_bytes` is the length of the index. Raises OSError."""
        self.segment = segment
        self.index_bytes = index_bytes
        self._grows = False  # the last block may, until it is synced
        self.synced = index_bytes > 0
        self.failed = False
        """True if a sync failed: then the system may have forgotten that something is not on the disk."""
        flags = os.O_RDWR | os.O_CREAT | (0 if index_bytes else os.O_TRUNC)
        self._log = os.open(segment.path, flags, 0o644)
        try:
            self._index = os.open(segment.index, flags, 0o644)
        except OSError:
            os.close(self._log)
            raise

    @property
    def block_room(self) -> int:
        """Return the bytes that the last block has room for."""
        return BLOCK_BYTES - self.segment.blocks[-1].length if self._grows else BLOCK_BYTES

    def write(self, packed: Packed) -> None:
        """Add entries. Raises OSError, and then nothing was added."""
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
        """Add a block of another segment as it is. Raises OSError."""
        copied = block._replace(position=self.segment.size_bytes)
        self.synced = False
        self._write(data, copied.position, index.encode(copied, {}))
        self.segment.blocks.append(copied)
        self.segment.end = block.next
        self._grows = False

    def note(self, newest: Mapping[bytes, int]) -> None:
        """Record the last offsets of these keys, after entries were copied. Raises OSError."""
        if self.segment.blocks:
            self._write(b"", 0, index.encode(self.segment.blocks[-1], newest))
            self.segment.newest.update(newest)
        self._grows = False

    def sync(self) -> None:
        """Sync all of it to the disk. Raises OSError, and then the state of the disk is unknown."""
        self._flush(self._log)
        self._flush(self._index)
        self._write(b"", 0, index.mark(self.segment.size_bytes, self.segment.end))  # only now confirm it
        self._flush(self._index)
        self._grows = False  # a block that grew later could be torn, and its marked part with it
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
            with suppress(OSError):  # a rest there would be written over, or cut when the log is opened
                os.ftruncate(self._index, self.index_bytes)
                if data:
                    os.ftruncate(self._log, position)
            raise
        self.index_bytes += len(record)
