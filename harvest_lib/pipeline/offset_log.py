"""The offset log, which stores the position of a writer. Its entries have the format of the commit log.

An entry's key is a namespace. Its data is the offset of the last message of this namespace that the writer has
acknowledged, as 8 bytes, big-endian. A writer acknowledges messages in the order of the commit log, so the highest
offset of all namespaces means that all earlier messages are acknowledged too.

Promises
- Flushed offsets survive a crash. Offsets that are acknowledged but not flushed may be lost.
- An offset is stored only after the commit log is synced, so that its message cannot be lost.
- Compaction retains the newest offset of each namespace.
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
"""The mode byte of all entries. An offset has neither a mode nor an op."""


class OffsetLog:
    """The offsets of a writer, in a separate folder. Any thread may call any method."""

    def __init__(
        self,
        folder: Path,
        *,
        sync_log: Callable[[], object] | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        """Open the offset log in `folder`, or create it. Each flush first calls `sync_log`, the method `sync` of the
        commit log to which the offsets refer.

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
        """Return the offset of the writer's next message: the highest acknowledged offset plus one."""
        return self._position

    @property
    def repaired(self) -> tuple[Cut, ...]:
        """Return the incomplete ends of files that were cut off when the offset log was opened."""
        return self._log.repaired

    @property
    def by_namespace(self) -> Mapping[bytes, int]:
        """Return the last acknowledged offset of each namespace."""
        with self._lock:
            return dict(self._offsets)

    def check(self, end: int) -> None:
        """Raise OffsetBeyondLog if a commit log that ends at `end` does not contain all acknowledged offsets."""
        if self._position > end:
            raise OffsetBeyondLog(
                f"a writer has acknowledged up to offset {self._position - 1}, and the log ends at {end}",
                evidence=str(self.folder),
                next_step="bring back the log that belongs to these offsets; or move the offsets away, and the writer "
                "gets all again that is in the log",
            )

    def acknowledge(self, namespace: bytes, offset: int) -> None:
        """Acknowledge a message, and with it all earlier messages. The next flush writes the offset to the disk. An
        offset that is not higher than the last offset of the namespace has no effect."""
        with self._lock:
            if offset <= self._offsets.get(namespace, -1):
                return
            self._offsets[namespace] = self._waiting[namespace] = offset
            self._position = max(self._position, offset + 1)

    def flush(self) -> None:
        """Sync all acknowledged offsets to the disk. Raises LogUnwritable; the next flush tries the offsets again."""
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
        """Remove all entries except the newest of each namespace. `flush` also compacts, when a segment is full. Raises
        LogUnwritable."""
        with self._flushing:
            self._log.roll()
            self._compact()

    def close(self) -> None:
        """Flush the offsets and release the log. Idempotent. If the flush fails, this method releases the log and
        raises LogUnwritable."""
        try:
            self.flush()
        finally:
            self._log.close()

    def _compact(self) -> None:
        self._log.compact(self._log.end)
        self._segments = self._log.segments


def flushed_position(folder: Path) -> int:
    """Return the flushed position of a writer; 0 if the folder has no offset log. A pipeline may have the log open at
    the same time."""
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
