"""A state folder for the servers of one session of tests, and nothing of it left behind when the session passed."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from harvest_lib.local_stack.state import locked

LOCK = "session.lock"


@contextmanager
def session_folder(session: pytest.Session, parts: Path, name: str) -> Iterator[Path]:
    """Hold the first folder `name`-N below `parts` that no other session holds, for servers that start without data.

    At the end, when they have ended, it is emptied. If a test failed it stays as it is, with their logs and data, until
    the next session takes it, or the next run of tiers begins.
    """
    with ExitStack() as held:
        folders = (parts / f"{name}-{number}" for number in count(1))
        folder = next(each for each in folders if held.enter_context(locked(each / LOCK, wait=False)))
        yield folder
        if not session.testsfailed:
            _empty(folder)


def empty_left_folders(parts: Path) -> None:
    """Empty the folders that sessions which failed or were killed have left: the next may have fewer workers."""
    for lock in parts.glob(f"*/{LOCK}"):
        with locked(lock, wait=False) as was_left:
            if was_left:
                _empty(lock.parent)


def _empty(folder: Path) -> None:
    """Remove all but the lock: were it removed, two sessions could each hold a lock of its name."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)  # files that stay do not make a session fail that passed
        elif entry.name != LOCK:
            entry.unlink()
