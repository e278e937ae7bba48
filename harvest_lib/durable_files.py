"""Files and folders whose names and content are on the disk, not only in the memory of the kernel."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def make_folder(folder: Path) -> None:
    """Make it, and sync its name to the disk, also if a process that made it was killed before that."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a folder that others made, and that we may not read
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # file systems that sync no folders, as Postgres takes them
            raise
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of another, or none, once all of it is on the disk.

    Until then it stands beside, under a name that begins with a dot. If the block fails, or the disk refuses, the file
    before stays as it was, and what was written is removed. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
