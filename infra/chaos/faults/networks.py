"""Faults of the leader's network: packets are lost or late, and connections are left to find out by themselves."""

import functools
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from infra.chaos.faults.fault import REPLACED, Fault, Strike
from infra.chaos.link import Way
from infra.chaos.namespaces import networks_lacking
from infra.chaos.network_path import Road, roads
from infra.chaos.system import System
from infra.chaos.writing import Writing


@contextmanager
def _on_roads(system: System) -> Iterator[None]:
    """Have every harvester in a network of its own."""
    with roads(len(system.members)) as made:
        system.move_members(made)
        yield


def _leader(do: Callable[[Road], None]) -> Strike:
    @contextmanager
    def strike(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        road = system.await_leader().network
        assert road is not None  # noqa: S101 - the system was prepared
        do(road)
        try:
            yield
        finally:
            road.heal()

    return strike


@functools.cache
def _shaping_lacking(do: Callable[[Road], None]) -> str | None:
    """Say what is lacking for packets that are slowed down in this way."""
    if lacking := networks_lacking():
        return lacking
    with roads(1) as (road,):
        try:
            do(road)
        except FileNotFoundError:
            return "there is no `tc`: install iproute2 (`make machine` does so as root on Debian)"
        except subprocess.CalledProcessError as error:
            kind = error.cmd[error.cmd.index("root") + 1]
            return f"this kernel has no `{kind}` ({error.stderr.strip()}): load or build its module sch_{kind}"
    return None


def _network_fault(promise: str, do: Callable[[Road], None], seconds: tuple[float, float] = REPLACED) -> Fault:
    return Fault(promise=promise, strike=_leader(do), seconds=seconds, needs=networks_lacking, prepare=_on_roads)


def _slowed(do: Callable[[Road], None]) -> Fault:
    return Fault(
        promise="slower, nothing else", strike=_leader(do), needs=partial(_shaping_lacking, do), prepare=_on_roads
    )


FAULTS: Mapping[str, Fault] = {
    "network-lost": _network_fault("another leads, and what comes late changes nothing", Road.lose),
    "network-lost-to-servers": _network_fault("what comes late is refused", partial(Road.lose, way=Way.TO_SERVER)),
    "network-lost-from-servers": _network_fault(
        "a leader without answers gives up", partial(Road.lose, way=Way.TO_CLIENT)
    ),
    "network-narrow": _slowed(Road.narrow),
    "network-slow": _slowed(Road.slow),
}
