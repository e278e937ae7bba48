"""Files and folders whose names and content are on the disk, not only in the memory of the kernel."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def make_folder(folder: Path) -> None:
    """Make a folder, and sync its name to the disk, also if a process that made it was killed before that."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # the parent may belong to another user
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # no sync of folders here; Postgres ignores the same errors
            raise
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path`, which need not exist, once all of it is on the disk.

    Until then it is beside `path`, under a name that begins with a dot. If the block fails, or the disk refuses, the
    previous file stays as it was, and the new file is removed. Raises OSError.
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
