"""The class of a fault, and the types of its parts."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from infra.chaos.aftermath import Check, led_within
from infra.chaos.system import SESSION_SECONDS, System, SystemMode
from infra.chaos.writing import Writing

Injection = Callable[[System, random.Random, Callable[[], Writing]], AbstractContextManager[None]]
"""Returns a context: entering it begins the fault, leaving it undoes the fault. The caller decides the duration. The
arguments are the system, a random generator, and a function that makes a recorded transaction."""

SLOW_SECONDS = 15.0
"""Additional time for a loaded machine."""
REPLACED = (SESSION_SECONDS + 1, SESSION_SECONDS + 6)
"""Least and greatest duration of a fault during which another harvester must begin to lead."""
replaced = led_within(SESSION_SECONDS + SLOW_SECONDS)
"""Check that another harvester leads within the session timeout plus `SLOW_SECONDS`, under either election."""


Needs = Callable[[], str | None]
"""Returns None if the machine meets all requirements, else a sentence: what is missing, and how to get it."""

Prepare = Callable[[System], AbstractContextManager[None]]
"""Returns a context that is entered before the system starts, and left when all processes of the system have ended."""


def _nothing() -> None:
    return None


def _unchanged(_system: System) -> AbstractContextManager[None]:
    return nullcontext()


def _any(_mode: SystemMode) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault. `seconds` is its least and its greatest duration, and `brokers` the number of brokers that it requires.
    `needs` returns a requirement that the machine lacks. `prepare` prepares the system for the fault. `fits` returns
    True for the modes in which it is injected. `checks` check promises that the checker of histories does not cover."""

    promise: str
    inject: Injection
    seconds: tuple[float, float] = (2.0, 10.0)
    brokers: int = 1
    needs: Needs = _nothing
    prepare: Prepare = _unchanged
    fits: Callable[[SystemMode], bool] = _any
    checks: Sequence[Check] = ()
