"""Functions that both file formats use: file names for namespaces, locks, and AdaptorError for errors of the system."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from harvest_lib.errors import AdaptorError


def file_name(namespace: str) -> str:
    """Return a file name for a namespace. The name is legal on every system, and refers to no other folder.
    `namespace_of` is the inverse."""
    name = quote(namespace, safe=" ")
    return name.replace(".", "%2E") if set(name) <= {"."} else name


def namespace_of(name: str) -> str:
    """Return the namespace for which `file_name` returned a name."""
    return unquote(name)


@contextmanager
def held(descriptor: int) -> Iterator[None]:
    """Lock an open file or folder exclusively (`flock`) against writers of other pipelines. Waits for the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Open a folder and lock it as `held` does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with held(descriptor):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def system_errors(what: str, path: Path | str) -> Iterator[None]:
    """Convert an OSError inside the block to AdaptorError. `what` is the participle in the error's text, such as
    `written`."""
    try:
        yield
    except OSError as error:
        raise AdaptorError(
            f"{path} cannot be {what}",
            evidence=f"{error.strerror or error} ({type(error).__name__})",
            next_step="see to space, permissions and the path; nothing that was not written counts as written",
        ) from error
