"""File operations of the commit log: names of files, complete reads and writes, atomic replacement, errors with a
remedy."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harvest_lib.errors import LogError, LogUnwritable
from harvest_lib.process.durable_files import sync_folder

_SEGMENT = re.compile(r"(\d{20})\.(\d+)\.(log|index)")
_UNFINISHED = re.compile(r"(\d{20}\.\d+\.index|log\.json)\.new")
_NEXT_STEPS = {
    errno.ENOSPC: "make room on the disk and start again: nothing that was acknowledged is lost",
    errno.EDQUOT: "raise the quota and start again: nothing that was acknowledged is lost",
    errno.EFBIG: "raise the limit for the size of files, or choose smaller segments, and start again",
    errno.EROFS: "mount the disk for writing, or choose another folder",
    errno.EACCES: "give the user this runs as the right to write there, or choose another folder",
    errno.EPERM: "give the user this runs as the right to write there, or choose another folder",
}


def log_path(folder: Path, base: int, generation: int) -> Path:
    return folder / f"{base:020}.{generation}.log"


def index_path(folder: Path, base: int, generation: int) -> Path:
    return folder / f"{base:020}.{generation}.index"


def segment_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the paths of all segment files (entries and indexes), each with its base offset and its generation."""
    found = {path: _SEGMENT.fullmatch(path.name) for path in folder.iterdir()}
    return {path: (int(matched[1]), int(matched[2])) for path, matched in found.items() if matched}


def unfinished_files(folder: Path) -> list[Path]:
    """Return the temporary files of replacements that did not finish."""
    return [path for path in folder.iterdir() if _UNFINISHED.fullmatch(path.name)]


@contextmanager
def writing(what: Path, doing: str) -> Iterator[None]:
    """Convert an OSError in the block to LogUnwritable with a remedy. `doing` names the action that failed. `what` is
    the file for the error's text, if the OSError names no file."""
    try:
        yield
    except OSError as error:
        raise LogUnwritable(
            f"cannot {doing}",
            evidence=f"{error.filename or what}: {error.strerror}",
            next_step=_NEXT_STEPS.get(error.errno or 0, "check the disk, then start again"),
        ) from error


def unreadable(path: Path, error: OSError) -> LogError:
    """Return the LogError for a file that could not be read because of `error`."""
    return LogError(
        "the log cannot be read",
        evidence=f"{path}: {error.strerror}",
        next_step="give the user this runs as the right to read it, and check the disk",
    )


def write_all(handle: int, data: bytes, at: int) -> None:
    """Write all of `data` at byte `at` of a file. Raises OSError; a part of `data` may then be written."""
    written = os.pwrite(handle, data, at)
    while written < len(data):
        written += os.pwrite(handle, memoryview(data)[written:], at + written)


def read_at(handle: int, size: int, at: int) -> bytes:
    """Return `size` bytes from byte `at` of a file; fewer bytes if the file ends before."""
    data = os.pread(handle, size, at)
    if len(data) == size or not data:
        return data
    parts = [data]  # a system call reads at most 2 GiB
    while data and sum(map(len, parts)) < size:
        data = os.pread(handle, size - sum(map(len, parts)), at + sum(map(len, parts)))
        parts.append(data)
    return b"".join(parts)


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically and durably: after a crash, it has the old or the new content. Raises
    OSError."""
    beside = path.with_name(f"{path.name}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    beside.replace(path)
    sync_folder(path.parent)
