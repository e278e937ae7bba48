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
) -> Found:
    """Wait until `condition` returns something true, and return that. It is called at least once, each time after the
    callables in `watched`, which raise errors that have come up meanwhile.

    Raises StackError after `seconds`: `otherwise` is its cause, `evidence` is called for its evidence.
    """
    deadline = Deadline(seconds)
    while True:
        for look in watched:
            look()
        if found := condition():
            return found
        if deadline.passed:
            raise StackError(otherwise, evidence=evidence(), next_step=next_step)
        time.sleep(tick_seconds)
