"""Waiting for a condition, for so long and no longer."""

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
    """Wait until `condition` returns something true, and return that. It is asked once at least, each time after those
    in `watched`, which raise what has gone wrong meanwhile.

    Raises StackError after so many seconds: `otherwise` is what is wrong then, `evidence` is asked for how that shows.
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
