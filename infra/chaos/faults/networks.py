"""Faults of the leader's network: packets are lost or delayed, and no connection is closed."""

import functools
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from infra.chaos.faults.fault import REPLACED, Fault, Injection, replaced
from infra.chaos.link import Direction
from infra.chaos.namespaces import networks_lacking
from infra.chaos.network_path import NetworkPath, network_paths
from infra.chaos.system import System
from infra.chaos.writing import Writing


@contextmanager
def _on_network_paths(system: System) -> Iterator[None]:
    """Put every harvester into its own network."""
    with network_paths(len(system.members)) as made:
        system.move_members(made)
        yield


def _leader(do: Callable[[NetworkPath], None]) -> Injection:
    @contextmanager
    def inject(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        path = system.await_leader().network
        assert path is not None  # noqa: S101 - the system was prepared
        do(path)
        try:
            yield
        finally:
            path.heal()

    return inject


@functools.cache
def _shaping_lacking(do: Callable[[NetworkPath], None]) -> str | None:
    """Return the reason why `do` cannot shape packets on this machine, None if it can."""
    if lacking := networks_lacking():
        return lacking
    with network_paths(1) as (path,):
        try:
            do(path)
        except FileNotFoundError:
            return "there is no `tc`: install iproute2 (`make machine` does so as root on Debian)"
        except subprocess.CalledProcessError as error:
            kind = error.cmd[error.cmd.index("root") + 1]
            return f"this kernel has no `{kind}` ({error.stderr.strip()}): load or build its module sch_{kind}"
    return None


def _network_fault(promise: str, do: Callable[[NetworkPath], None], seconds: tuple[float, float] = REPLACED) -> Fault:
    return Fault(
        promise=promise,
        inject=_leader(do),
        seconds=seconds,
        needs=networks_lacking,
        prepare=_on_network_paths,
        checks=[replaced],
    )


def _slowed(do: Callable[[NetworkPath], None]) -> Fault:
    return Fault(
        promise="slower, nothing else",
        inject=_leader(do),
        needs=partial(_shaping_lacking, do),
        prepare=_on_network_paths,
    )


FAULTS: Mapping[str, Fault] = {
    "network-lost": _network_fault("another leads, and late requests change nothing", NetworkPath.lose),
    "network-lost-to-servers": _network_fault(
        "late requests are refused", partial(NetworkPath.lose, direction=Direction.TO_SERVER)
    ),
    "network-lost-from-servers": _network_fault(
        "a leader without answers gives up", partial(NetworkPath.lose, direction=Direction.TO_CLIENT)
    ),
    "network-narrow": _slowed(NetworkPath.narrow),
    "network-slow": _slowed(NetworkPath.slow),
}
