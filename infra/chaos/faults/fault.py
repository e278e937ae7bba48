"""Definition of a fault."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from infra.chaos.aftermath import Check, led_within
from infra.chaos.system import SESSION_SECONDS, System, SystemMode
from infra.chaos.writing import Writing

Injection = Callable[[System, random.Random, Callable[[], Writing]], AbstractContextManager[None]]
"""A context: the fault begins on entry and has been undone on exit. The caller decides how long it lasts. It gets the
system, a random generator, and a function that begins a transaction that the history follows."""

SLOW_SECONDS = 15.0
"""Allowance for a machine that has much else to do."""
REPLACED = (SESSION_SECONDS + 1, SESSION_SECONDS + 6)
"""Long enough that another harvester leads meanwhile."""
replaced = led_within(SESSION_SECONDS + SLOW_SECONDS)
"""Check that another harvester leads within the session timeout, however the leader is elected."""


Needs = Callable[[], str | None]
"""Returns what the machine lacks for a fault and how to get it, in a sentence; None where it lacks nothing."""

Prepare = Callable[[System], AbstractContextManager[None]]
"""A context around everything the system does: entered before it starts, left when all of it has ended."""


def _nothing() -> None:
    return None


def _unchanged(_system: System) -> AbstractContextManager[None]:
    return nullcontext()


def _any(_mode: SystemMode) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong. `seconds` is its least and its greatest duration; `brokers` the number it takes;
    `needs` returns a requirement that the machine lacks, and `prepare` prepares the system for it; `fits` selects the
    modes that it concerns, and `checks` cover what the checker of histories does not."""

    promise: str
    inject: Injection
    seconds: tuple[float, float] = (2.0, 10.0)
    brokers: int = 1
    needs: Needs = _nothing
    prepare: Prepare = _unchanged
    fits: Callable[[SystemMode], bool] = _any
    checks: Sequence[Check] = ()
