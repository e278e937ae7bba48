"""Faults of the process that leads."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from infra.chaos.aftermath import led_within, nothing_repeats
from infra.chaos.faults.fault import REPLACED, SLOW_SECONDS, Fault
from infra.chaos.system import SESSION_SECONDS, System
from infra.chaos.writing import Writing


@contextmanager
def _leader_killed(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    leader = system.await_leader()
    assert leader.harvester is not None  # noqa: S101 - it leads
    leader.harvester.process.kill()
    try:
        yield
    finally:
        system.start_member(leader)


@contextmanager
def _leader_released(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    leader = system.await_leader()
    assert leader.harvester is not None  # noqa: S101 - it leads
    leader.harvester.process.stop()
    try:
        yield
    finally:
        system.start_member(leader)


@contextmanager
def _leader_frozen(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    leader = system.await_leader()
    assert leader.harvester is not None  # noqa: S101 - it leads
    leader.harvester.process.suspend()
    try:
        yield
    finally:
        leader.harvester.process.resume()


_AT_ONCE_SECONDS = 10.0
_REPLACED = led_within(SESSION_SECONDS + SLOW_SECONDS)

FAULTS: Mapping[str, Fault] = {
    "leader-killed": Fault(
        promise="another leads within the session timeout", inject=_leader_killed, checks=[_REPLACED]
    ),
    "leader-released": Fault(
        promise="another leads at once, nothing repeats",
        inject=_leader_released,
        seconds=(1, 4),
        checks=[led_within(_AT_ONCE_SECONDS), nothing_repeats],
    ),
    "leader-frozen": Fault(
        promise="a zombie changes nothing", inject=_leader_frozen, seconds=REPLACED, checks=[_REPLACED]
    ),
}
