"""Waiting for a condition, within a time limit."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from harvest_lib.clock import Deadline
from harvest_lib.errors import StackError

Found = TypeVar("Found")

_TICK_SECONDS = 0.1


def _nothing() -> str:
    return ""


def until(
    condition: Callable[[], Found | None],
    seconds: float,
    otherwise: str,
    *,
    next_step: str,
    evidence: Callable[[], str] = _nothing,
    tick_seconds: float = _TICK_SECONDS,
    watched: Sequence[Callable[[], object]] = (),
    progress: Callable[[], object] | None = None,
) -> Found:
    """Wait until `condition` returns a true value, and return this value. `condition` is called at least once. Before
    each call the callables in `watched` are called; they may raise errors, which end the wait.

    Raises StackError after `seconds`, counted from the last change of `progress` if that is given: `otherwise` is its
    cause, and the result of `evidence` its evidence.
    """
    deadline, before = Deadline(seconds), progress() if progress else None
    while True:
        for look in watched:
            look()
        if found := condition():
            return found
        if progress is not None and (now := progress()) != before:
            deadline, before = Deadline(seconds), now
        elif deadline.passed:
            raise StackError(otherwise, evidence=evidence(), next_step=next_step)
        time.sleep(tick_seconds)
