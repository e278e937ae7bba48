"""Rate of draining a backlog, from the first record that comes to the last, and its cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.compare.cost import Cost, cost_of
from tests.benchmarks.compare.peer import Peer, Place, Running
from tests.benchmarks.compare.progress import Sample, Topic, rate, watch

_WARM_UP = 0.25
"""Of the backlog: so much is drained first by the same processes, or by others where a pause ends them."""
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Records per second, CPU microseconds per record of the relay and of the servers, memory of the relay."""

    rate: float
    cpu_micros: float
    servers_cpu_micros: float
    megabytes: float
    samples: Sequence[Sample] = ()


def drain(peer: Peer, place: Place, records: int) -> Drain:
    """Drain its share of a backlog, which is written while the relay stands still."""
    peer.make(place)
    topic = Topic(place.servers)
    with peer.run(place, members=1) as relay:
        _deliver(peer, place, relay, topic, int(records * peer.share * _WARM_UP))
        return _deliver(peer, place, relay, topic, int(records * peer.share))


def _deliver(peer: Peer, place: Place, relay: Running, topic: Topic, records: int) -> Drain:
    relay.pause()
    peer.insert(place, records)
    base = topic.records()
    relay.resume()
    begun: list[Cost] = []
    samples = watch(topic.records, base, records, first=lambda: begun.extend(_costs(relay, place)))
    spent = [after.cpu_seconds - before.cpu_seconds for after, before in zip(_costs(relay, place), begun, strict=True)]
    counted = samples[-1].records - samples[0].records
    return Drain(
        rate=rate(samples),
        cpu_micros=spent[0] / counted * 1e6,
        servers_cpu_micros=spent[1] / counted * 1e6,
        megabytes=_costs(relay, place)[0].highest_bytes / _MEGABYTE,
        samples=samples,
    )


def _costs(relay: Running, place: Place) -> tuple[Cost, Cost]:
    return cost_of(each.pid for each in relay.processes if each.pid), cost_of(place.pids)
