"""The order of a run: each relay alone first, then all in turn on the same servers."""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psycopg
from confluent_kafka import KafkaException

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack import Stack
from tests.benchmarks.backlog import Servers
from tests.benchmarks.compare.drain import Drain, drain
from tests.benchmarks.compare.failover import Failover, failover
from tests.benchmarks.compare.live import Live, live
from tests.benchmarks.compare.peer import Built, LeftOutError, Peer, Place
from tests.benchmarks.compare.primary import Primary, primary
from tests.benchmarks.compare.results import Found

POSTGRES, KAFKA = "16", "3.9.1"
"""On Kafka 4 goharvest's client never hears its own heartbeats."""

_FAILURES = (RuntimeError, OSError, HarvestError, KafkaException, psycopg.Error)
Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a comparison. `long_records` are drained once by each: a virtual machine has compiled its code by then;
    0 leaves that out."""

    records: int = 400_000
    long_records: int = 2_000_000
    rounds: int = 3
    seconds: float = 10.0
    kills: int = 1


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Relays built, their measurements, and the parts left out with the reason."""

    built: dict[str, Built] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def attempt(self, what: str, call: Callable[[], Measured]) -> Measured | None:
        """Return what a call returns; when it fails, note that it was left out and why."""
        try:
            return call()
        except _FAILURES as reason:
            self.left_out[what] = " ".join(f"{type(reason).__name__}: {reason}".split())
            return None


def compare(
    peers: Sequence[Peer],
    size: Size,
    state: Path,
    *,
    alone: Collection[str],
    say: Callable[[str], None],
    keep: Callable[[Comparison], None],
) -> Comparison:
    """Measure all relays that can be built; `alone` names those that are measured alone too.

    `keep` is given what there is after each measurement, should a later one not end.
    """
    done, ready, short = Comparison(), [], size.records
    for peer in peers:
        say(f"{peer.title}: building")
        try:
            done.built[peer.name] = peer.build(state)
        except LeftOutError as reason:
            done.left_out[peer.name] = " ".join(str(reason).split())
        else:
            done.found[peer.name] = Found()
            ready.append(peer)
    if not ready:
        return done
    for peer in ready:
        if peer.name in alone:
            say(f"{peer.title}: drain, alone")
            with _place(state) as place:
                done.found[peer.name].alone = done.attempt(f"{peer.name} alone", partial(_drain, peer, place, short))
            keep(done)
    with _place(state) as place:
        say("warming the servers up")
        done.attempt("warm-up", partial(_drain, ready[0], place, short))
        for number in range(1, size.rounds + 1):
            for peer in ready:
                say(f"{peer.title}: drain, round {number}")
                measured = done.attempt(f"{peer.name} drain, round {number}", partial(_drain, peer, place, short))
                done.found[peer.name].drains.append(measured)
                keep(done)
        for peer in ready if size.long_records else ():
            say(f"{peer.title}: long drain")
            long_one = done.attempt(f"{peer.name} long drain", partial(_drain, peer, place, size.long_records))
            done.found[peer.name].long_drain = long_one
            keep(done)
        for peer in ready:
            say(f"{peer.title}: latency and idle cost")
            done.found[peer.name].live = done.attempt(f"{peer.name} latency", partial(_live, peer, place, size))
            say(f"{peer.title}: cost for Postgres")
            done.found[peer.name].primary = done.attempt(f"{peer.name} cost", partial(_primary, peer, place, size))
            keep(done)
            for number in range(1, size.kills + 1):
                say(f"{peer.title}: failover {number}")
                if survived := done.attempt(f"{peer.name} failover {number}", partial(_failover, peer, place)):
                    done.found[peer.name].failovers.append(survived)
                keep(done)
    return done


def _drain(peer: Peer, place: Place, records: int) -> Drain:
    return drain(peer, _fresh(peer, place), records)


def _live(peer: Peer, place: Place, size: Size) -> Live:
    return live(peer, _fresh(peer, place), size.seconds)


def _primary(peer: Peer, place: Place, size: Size) -> Primary:
    return primary(peer, _fresh(peer, place), size.seconds)


def _failover(peer: Peer, place: Place) -> Failover:
    return failover(peer, _fresh(peer, place))


def _fresh(peer: Peer, place: Place) -> Place:
    return place.with_topic(f"{peer.name}-{uuid4().hex[:8]}")


@contextmanager
def _place(state: Path) -> Iterator[Place]:
    """Start servers that hold nothing yet."""
    folder = state / "compare" / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stack = Stack(state / "compare", postgres=POSTGRES, kafka=KAFKA, fresh=True, parts=state)
    with stack:
        servers = Servers(dsn=stack.dsn, bootstrap_servers=stack.bootstrap_servers, topic="")
        pids = tuple(server.pid for server in stack.describe().servers)
        yield Place(servers=servers, folder=folder, pids=pids)
