"""Common parts of the file formats: names for namespaces, locks, and operating system errors as AdaptorError."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from harvest_lib.errors import AdaptorError


def file_name(namespace: str) -> str:
    """Return a name for a namespace that is legal everywhere and leads nowhere else; `namespace_of` reads it."""
    name = quote(namespace, safe=" ")
    return name.replace(".", "%2E") if set(name) <= {"."} else name


def namespace_of(name: str) -> str:
    """Return the namespace that a name was made for."""
    return unquote(name)


@contextmanager
def held(descriptor: int) -> Iterator[None]:
    """Lock a file or folder against the writers of other pipelines, in any process."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against the writers of other pipelines."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with held(descriptor):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def system_errors(what: str, path: Path | str) -> Iterator[None]:
    """Raise AdaptorError for an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise AdaptorError(
            f"{path} cannot be {what}",
            evidence=f"{error.strerror or error} ({type(error).__name__})",
            next_step="see to space, permissions and the path; nothing that was not written counts as written",
        ) from error
