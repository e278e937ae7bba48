"""Durable files and folders: names and content are synced to disk, and not only in the memory of the kernel."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing. Sync the folder's name to disk even if the folder exists,
    because the process that created the folder may have been killed before its sync."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # the parent may belong to another user
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names of the entries of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # the system cannot sync folders; Postgres ignores both too
            raise
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file. At the end of the block the file is synced to disk, and then replaces `path` atomically.

    During the block the file is in the folder of `path`, under a name that begins with a dot. `path` need not exist. If
    the block or the disk fails, an existing file is unchanged, and the new file is removed. Raises OSError.
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
