"""Faults of harvester processes: of the leader, or of the whole pool."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from harvest_lib.local_stack.process import ServerProcess
from infra.chaos.aftermath import led_within, nothing_repeats
from infra.chaos.faults.fault import REPLACED, Fault, Injection, replaced
from infra.chaos.member import Member
from infra.chaos.system import System
from infra.chaos.writing import Writing


def _leader(do: Callable[[ServerProcess], None], undo: Callable[[System, Member], None]) -> Injection:
    @contextmanager
    def inject(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        leader = system.await_leader()
        assert leader.harvester is not None  # noqa: S101 - it leads
        do(leader.harvester.process)
        try:
            yield
        finally:
            undo(system, leader)

    return inject


def _resume(_system: System, member: Member) -> None:
    assert member.harvester is not None  # noqa: S101 - it was suspended
    member.harvester.process.resume()


@contextmanager
def _pool_killed(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    system.await_leader()
    for member in system.members:
        assert member.harvester is not None  # noqa: S101 - all were started
        member.harvester.process.kill()
    try:
        yield
    finally:
        for member in system.members:
            system.start_member(member)


_AT_ONCE_SECONDS = 10.0

FAULTS: Mapping[str, Fault] = {
    "leader-killed": Fault(
        promise="another leads within the session timeout",
        inject=_leader(ServerProcess.kill, System.start_member),
        checks=[replaced],
    ),
    "leader-released": Fault(
        promise="another leads at once, nothing repeats",
        inject=_leader(ServerProcess.stop, System.start_member),
        seconds=(1, 4),
        checks=[led_within(_AT_ONCE_SECONDS), nothing_repeats],
    ),
    "leader-frozen": Fault(
        promise="a zombie changes nothing",
        inject=_leader(ServerProcess.suspend, _resume),
        seconds=REPLACED,
        checks=[replaced],
    ),
    "pool-killed": Fault(
        promise="nothing is lost, and delivery continues once there is a harvester", inject=_pool_killed, seconds=(1, 4)
    ),
}
