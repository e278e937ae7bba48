"""Position of a writer: a log of offsets, keyed by namespace, whose entries have the commit log's format.

Each entry's data is the offset of the last message of its namespace that the writer is done with, 8 bytes, big-endian.
A writer handles messages in the order of the log, so it is done with all before the highest of them.

Promises
- Flushed offsets are found again, whatever happens; offsets that were only acknowledged may be lost.
- An offset is kept only once its message cannot be lost: the commit log is synced first.
- The newest offset of each namespace outlives compaction.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct

from harvest_lib.clock import unix_ms
from harvest_lib.errors import LogDamaged, OffsetBeyondLog
from harvest_lib.pipeline.commit_log.log import CommitLog
from harvest_lib.pipeline.commit_log.opening import Cut
from harvest_lib.pipeline.commit_log.reading import LogView

_OFFSET = Struct(">Q")
_SEGMENT_BYTES = 1 << 18
_MODE = 0
"""Offsets have none."""


class OffsetLog:
    """The offsets of a writer, in a folder of their own. Any number of threads may use it."""

    def __init__(
        self,
        folder: Path,
        *,
        sync_log: Callable[[], object] | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        """Open it, or begin it. `sync_log` is `CommitLog.sync` of the log that the offsets are of; each flush calls it.

        Raises LogInUse, LogTooNew, LogDamaged, LogUnwritable.
        """
        self.folder = folder
        self._sync_log = sync_log
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._waiting: dict[bytes, int] = {}
        self._log = CommitLog(folder, segment_bytes=segment_bytes, sync_seconds=0.0)
        try:
            self._offsets = _read(self._log)
        except BaseException:
            self._log.close()
            raise
        self._position = max(self._offsets.values(), default=-1) + 1
        self._segments = self._log.segments

    @property
    def position(self) -> int:
        """Return the offset after the highest that was acknowledged: the next message this writer gets."""
        return self._position

    @property
    def repaired(self) -> tuple[Cut, ...]:
        """Return the parts that were cut off its own end when it was opened, because they were not written whole."""
        return self._log.repaired

    @property
    def by_namespace(self) -> Mapping[bytes, int]:
        """Return the last offset of each namespace that was acknowledged."""
        with self._lock:
            return dict(self._offsets)

    def check(self, end: int) -> None:
        """Check that a log that ends there has them all. Raises OffsetBeyondLog."""
        if self._position > end:
            raise OffsetBeyondLog(
                f"a writer has acknowledged up to offset {self._position - 1}, and the log ends at {end}",
                evidence=str(self.folder),
                next_step="bring back the log that belongs to these offsets; or move the offsets away, and the writer "
                "gets all again that is in the log",
            )

    def acknowledge(self, namespace: bytes, offset: int) -> None:
        """Note a message as done, and with it all before; in memory, until it is flushed. One below is no step back."""
        with self._lock:
            if offset <= self._offsets.get(namespace, -1):
                return
            self._offsets[namespace] = self._waiting[namespace] = offset
            self._position = max(self._position, offset + 1)

    def flush(self) -> None:
        """Sync all acknowledged offsets to the disk. Raises LogUnwritable, and then they are still to be flushed."""
        with self._flushing:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            if not waiting:
                return
            try:
                if self._sync_log is not None:
                    self._sync_log()
                now = unix_ms()
                self._log.append([(now, _MODE, key, _OFFSET.pack(offset)) for key, offset in waiting.items()])
            except BaseException:
                with self._lock:
                    self._waiting = waiting | self._waiting
                raise
            if self._log.segments > self._segments:
                self._compact()

    def compact(self) -> None:
        """Leave nothing but the newest offset of each namespace. Happens by itself too. Raises LogUnwritable."""
        with self._flushing:
            self._log.roll()
            self._compact()

    def close(self) -> None:
        """Flush and release it. Idempotent. Raises LogUnwritable, having released it."""
        try:
            self.flush()
        finally:
            self._log.close()

    def _compact(self) -> None:
        self._log.compact(self._log.end)
        self._segments = self._log.segments


def flushed_position(folder: Path) -> int:
    """Return a writer's position as its log has it now, without taking that from its process; 0 without a log."""
    return max(_read(CommitLog.look(folder)).values(), default=-1) + 1 if CommitLog.is_there(folder) else 0


def _read(log: LogView) -> dict[bytes, int]:
    try:
        return {key: _OFFSET.unpack(entry.value)[0] for key, entry in log.newest().items()}
    except LogDamaged as error:
        raise LogDamaged(
            "how far a writer was is damaged",
            path=error.path,
            byte=error.byte,
            offsets=error.offsets,
            next_step="bring the file back from a copy; or move the folder with these offsets away, and the writer "
            "gets all again that is in the commit log",
        ) from error
