"""The manifest of a log (file `log.json`: the list of segments, the version of the format), and the lock of its folder.

The manifest is replaced atomically, and a segment file that it does not list does not belong to the log. So a new
segment is added, and a compacted segment replaces its predecessor, atomically. The lock admits one writing process.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from harvest_lib.errors import LogDamaged, LogInUse, LogTooNew
from harvest_lib.pipeline.commit_log.files import replace, unreadable
from harvest_lib.pipeline.commit_log.segment import LogSegment

VERSION = 1
_NAME = "log.json"
_LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed segment as the manifest lists it. No more entries are appended to such a segment."""

    base: int
    """The segment's first offset, which is part of its file names."""
    generation: int
    """How often the segment was compacted."""
    end: int
    """The offset after its last entry."""
    size_bytes: int

    @classmethod
    def of(cls, segment: LogSegment) -> "ClosedSegment":
        return cls(base=segment.base, generation=segment.generation, end=segment.end, size_bytes=segment.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManifest:
    """Contents of the manifest file."""

    closed: tuple[ClosedSegment, ...]
    """The closed segments, in the order of their offsets."""
    active: int
    """The first offset of the active segment, to which entries are appended."""


def read(folder: Path) -> LogManifest | None:
    """Return the manifest in a folder, None if there is no log. Raises LogTooNew, LogDamaged, LogError if the file is
    unreadable."""
    path = folder / _NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        found = json.loads(text)
        version = int(found["version"])
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, str(error)) from error
    if version > VERSION:
        raise LogTooNew(
            f"the log was written by a later version: its format is {version}, the latest known here {VERSION}",
            evidence=str(path),
            next_step="use that version of this library, or a new folder",
        )
    checksum = found.pop("checksum", None)
    if checksum != _checksum(found):
        raise _damaged(path, f"its checksum is {checksum}, its contents have {_checksum(found)}")
    return LogManifest(closed=tuple(ClosedSegment(**each) for each in found["closed"]), active=found["active"])


def write(folder: Path, manifest: LogManifest) -> None:
    """Replace the manifest in a folder atomically. Raises OSError; the file then has its previous or its new
    contents."""
    content = {"version": VERSION, **asdict(manifest)}
    content["closed"] = list(content["closed"])
    content["checksum"] = _checksum(content)
    replace(folder / _NAME, json.dumps(content, indent=1).encode() + b"\n")


def _checksum(content: dict[str, Any]) -> int:
    return crc32(json.dumps(content, sort_keys=True).encode())


def _damaged(path: Path, why: str) -> LogDamaged:
    return LogDamaged(
        "it is unknown which segments the log has: the file that names them is damaged",
        path=path,
        byte=0,
        evidence=why,
        next_step="bring the file back from a copy of the folder; or move the folder away, and all is copied again",
    )


class Lock:
    """An exclusive lock on a log's folder, held until `release` or until the process ends."""

    def __init__(self, folder: Path) -> None:
        """Acquire the lock without waiting. Raises LogInUse if the lock is held already, OSError."""
        self._handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 20, 0).decode(errors="replace").strip()
            os.close(self._handle)
            raise LogInUse(
                "another process writes this log",
                evidence=f"{folder / _LOCK} is locked" + (f" by process {holder}" if holder else ""),
                next_step="stop that process first; a pipeline needs a folder of its own",
            ) from error
        except OSError:
            os.close(self._handle)
            raise
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # the process id is only information for operators; a full disk must not prevent opening the log
        self._held = True

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._held:
            self._held = False
            os.close(self._handle)
