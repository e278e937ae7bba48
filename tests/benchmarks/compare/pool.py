"""Processes of one kind on one outbox, of which one leads, as its log says: goharvest's and ours."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from harvest_lib.local_stack.process import ServerProcess, tail

_LONGEST_SECONDS = 60.0
_SETTLED_SECONDS = 3.0
"""A member that joins moves the leadership; after so long without a change all have joined."""
_LOOK_SECONDS = 0.02


class Member(Protocol):
    """One process, and whether the last thing that it said of leadership is that it has it."""

    process: ServerProcess

    def start(self) -> None:
        """Start it; returns at once."""

    def leads(self) -> bool:
        """Return True if it leads now."""


class Pool:
    """Some members. To pause is to stop them all: records that wait for a process to start are not measured."""

    def __init__(self, members: Sequence[Member]) -> None:
        """Start nothing yet."""
        self._members = list(members)

    @property
    def processes(self) -> list[ServerProcess]:
        """Those that were not killed."""
        return [each.process for each in self._members]

    def pause(self) -> None:
        """Stop all."""
        for each in self._members:
            each.process.begin_stop()
        for each in self._members:
            each.process.stop()

    def resume(self) -> None:
        """Start all, and wait for a leader; among several, for one that stays."""
        for each in self._members:
            each.start()
        leader, since = None, time.monotonic()

        def settled() -> bool:
            nonlocal leader, since
            now = self._leader()
            if now is not leader:
                leader, since = now, time.monotonic()
            patience = _SETTLED_SECONDS if len(self._members) > 1 else 0.0
            return leader is not None and time.monotonic() - since >= patience

        self._await(settled)

    def kill_leader(self) -> float:
        """SIGKILL the one that leads."""
        leader = self._leader()
        if leader is None:
            raise RuntimeError("nobody leads, so nobody can be killed")
        self._members.remove(leader)
        at = time.time()
        leader.process.kill()
        return at

    def _leader(self) -> Member | None:
        return next((each for each in self._members if each.leads()), None)

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not condition():
            for each in self._members:
                if each.process.pid is None:
                    raise RuntimeError(f"{each.process.name} ended by itself: {tail(each.process.log)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody came to lead: {tail(self._members[0].process.log)}")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def running(members: Sequence[Member]) -> Iterator[Pool]:
    """Run members until this is left."""
    pool = Pool(members)
    try:
        pool.resume()
        yield pool
    finally:
        pool.pause()
