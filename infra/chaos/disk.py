"""A file system that can be made full: a tmpfs whose size limit is lowered until a write fails.

The calling thread needs its own mounts (`namespaces.own_mounts`).
"""

import errno
import os
import subprocess
from pathlib import Path

from infra.chaos.namespaces import run
from infra.waiting import until

_ROOM_BYTES = 4 * 1024**3
"""The size limit while the file system is not full. No run reaches it, and only stored content takes memory."""
_TRY_SECONDS = 10.0
_TICK_SECONDS = 0.01


class Disk:
    """A tmpfs mounted on a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={_ROOM_BYTES},mode=755", "tmpfs", str(folder))

    def fill(self) -> None:
        """Lower the limit until the file system is full. Raises StackError if it does not become full."""
        until(
            lambda: self._limit(self._used_bytes()) and self.is_full(),
            _TRY_SECONDS,
            f"{self._folder} did not become full",
            evidence=lambda: f"{self._used_bytes()} bytes are used",
            next_step="run it again",
            tick_seconds=_TICK_SECONDS,
        )

    def is_full(self) -> bool:
        """Return True if a write fails because no space is left."""
        probe = self._folder / ".probe"
        try:
            probe.write_bytes(bytes(1))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return True
        finally:
            probe.unlink(missing_ok=True)
        return False

    def empty(self) -> None:
        """Raise the limit again; stored files stay."""
        self._limit(_ROOM_BYTES)

    def _limit(self, size_bytes: int) -> bool:
        """Set the limit. Return False if the kernel refuses it because more bytes are already in use."""
        try:
            _mount("-o", f"remount,size={size_bytes}", str(self._folder))
        except subprocess.CalledProcessError:
            return False
        return True

    def _used_bytes(self) -> int:
        found = os.statvfs(self._folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize


def _mount(*arguments: str) -> None:
    run("mount", *arguments)
