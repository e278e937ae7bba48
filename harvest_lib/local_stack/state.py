"""The state folder, with all files of the local stack except downloads. Only one stack at a time can use the folder.

Downloads are in another folder, which all state folders of a user share.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harvest_lib.errors import StackError


def default_state() -> Path:
    """Return the state folder: `HARVEST_HOME`, else `.harvest` at the root of the project that contains the current
    folder."""
    if home := os.environ.get("HARVEST_HOME"):
        return Path(home).expanduser().resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in (".harvest", "pyproject.toml", ".git")):
            return folder / ".harvest"
    return here / ".harvest"


def download_cache(state: Path) -> Path:
    """Return the folder of downloads: `HARVEST_CACHE`, else `harvest` in the user's cache folder.

    If neither HOME nor XDG_CACHE_HOME names a writable folder, the result is `cache` in the state folder.
    """
    if named := os.environ.get("HARVEST_CACHE"):
        return Path(named).expanduser().resolve()
    # infra/downloads.sh applies the same rules.
    base, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if not base.startswith("/"):
        base = f"{home}/.cache" if home and Path(home).is_dir() else ""
    if base:
        folder = Path(base) / "harvest"
        above = next(each for each in (folder, *folder.parents) if each.exists())
        if above.is_dir() and os.access(above, os.W_OK):
            return folder
    return state / "cache"


def make_folder(path: Path) -> Path:
    """Create a folder and its parents if they are missing, and return the folder. Raises StackError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(
            "the state folder cannot be written",
            evidence=f"{path}: {error.strerror}",
            next_step="name a folder you may write to in HARVEST_HOME, or for downloads in HARVEST_CACHE",
        ) from error
    return path


def make_private(path: Path) -> Path:
    """Create a folder that only its owner can read, and return it. An existing folder gets the same permissions."""
    make_folder(path).chmod(0o700)
    return path


@contextmanager
def private_log(path: Path) -> Iterator[BinaryIO]:
    """Open a log for appending. Only the owner can read it, because servers quote their input in their logs."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        os.fchmod(log.fileno(), 0o600)
        yield log


def write_private(path: Path, text: str) -> None:
    """Write a file atomically. Only the owner can read it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock between processes while the context is active. Yield True if the lock was acquired. Without `wait`,
    yield False if another process holds the lock."""
    make_folder(path.parent)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
