"""Faults of the leader's wall clock. Its boot clock, by which terms end, stays correct, because it cannot be set."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from infra.chaos.faults.fault import REPLACED, Fault, Injection
from infra.chaos.system import System
from infra.chaos.writing import Writing

_HOUR_SECONDS = 3600.0


def _off(seconds: float) -> Injection:
    @contextmanager
    def inject(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        clock = system.await_leader().clock
        clock.set_off(seconds)
        try:
            yield
        finally:
            clock.set_right()

    return inject


FAULTS: Mapping[str, Fault] = {
    "clock-ahead": Fault(
        promise="leadership, delivery and order do not depend on it", inject=_off(_HOUR_SECONDS), seconds=REPLACED
    ),
    "clock-behind": Fault(
        promise="nothing is lost; topics that refuse late records may wait",
        inject=_off(-_HOUR_SECONDS),
        seconds=REPLACED,
    ),
}
