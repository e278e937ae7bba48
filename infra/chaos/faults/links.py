"""Faults of the leader's links to the servers."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from infra.chaos.faults.fault import REPLACED, Fault, Injection
from infra.chaos.link import Direction, Link
from infra.chaos.member import Member
from infra.chaos.system import System
from infra.chaos.writing import Writing

_LATENCY_SECONDS = 0.08


def _links(of: Callable[[Member], list[Link]], do: Callable[[Link], None]) -> Injection:
    @contextmanager
    def inject(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        leader = system.await_leader()
        for link in of(leader):
            do(link)
        try:
            yield
        finally:
            leader.heal()

    return inject


def _postgres(member: Member) -> list[Link]:
    return [member.postgres]


def _kafka(member: Member) -> list[Link]:
    return member.kafka


def _both(member: Member) -> list[Link]:
    return [member.postgres, *member.kafka]


def _half_open(of: Callable[[Member], list[Link]], direction: Direction, promise: str) -> Fault:
    return Fault(promise=promise, inject=_links(of, partial(Link.hold, direction=direction)), seconds=REPLACED)


FAULTS: Mapping[str, Fault] = {
    "postgres-cut": Fault(promise="nothing is lost", inject=_links(_postgres, Link.cut)),
    "postgres-unheard": _half_open(_postgres, Direction.TO_CLIENT, "a leader without answers gives up"),
    "postgres-unreached": _half_open(_postgres, Direction.TO_SERVER, "a late statement changes nothing"),
    "kafka-cut": Fault(promise="nothing is lost", inject=_links(_kafka, Link.cut), seconds=REPLACED),
    "kafka-unheard": _half_open(
        _kafka, Direction.TO_CLIENT, "writes without an answer repeat as promised, or not at all"
    ),
    "kafka-unreached": _half_open(_kafka, Direction.TO_SERVER, "late requests are refused"),
    "latency": Fault(
        promise="slower, nothing else", inject=_links(_both, partial(Link.delay, seconds=_LATENCY_SECONDS))
    ),
}
