"""Report lines from the figures of all relays, with ratios of the same round."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.compare.drain import Drain
from tests.benchmarks.compare.failover import Failover
from tests.benchmarks.compare.live import RATE, Live
from tests.benchmarks.compare.primary import Primary
from tests.benchmarks.report import Result, at_least

EXACTLY_ONCE, BARRIER, DEBEZIUM, GOHARVEST = "exactly-once", "barrier", "debezium", "goharvest"

_TARGETS = {
    (EXACTLY_ONCE, DEBEZIUM): 8.0,
    (EXACTLY_ONCE, GOHARVEST): 80.0,
    (BARRIER, DEBEZIUM): None,
    (BARRIER, GOHARVEST): None,
}
_ALONE = 0.9
"""Of its rate on servers that no other relay has used: less would mean that the run itself slows it down. Drains of one
relay differ by more than the rest from one to the next."""


_KEPT_UP = 0.95
"""Of the rate at which records were to be written: with less, the report says so."""


@dataclass(slots=True, kw_only=True)
class Found:
    """Measurements of one relay; a drain for each round so far, None where it failed."""

    drains: list[Drain | None] = field(default_factory=list)
    long_drain: Drain | None = None
    alone: Drain | None = None
    live: Live | None = None
    primary: Primary | None = None
    failovers: list[Failover] = field(default_factory=list)


def results(found: Mapping[str, Found]) -> Iterator[Result]:
    """Return a line for each figure that there is."""
    for name, each in found.items():
        if rates := [drain.rate for drain in each.drains if drain]:
            yield Result(name=f"drain-{name}", value=median(rates), unit="/s")
    for (ours, other), target in _TARGETS.items():
        if ours in found and other in found:
            yield from _ratio(f"{ours}-to-{other}", found[ours].drains, found[other].drains, target)
    for name, each in found.items():
        if each.long_drain:
            yield Result(name=f"drain-long-{name}", value=each.long_drain.rate, unit="/s")
    for ours, other in _TARGETS:
        if ours in found and other in found:
            yield from _ratio(f"long-{ours}-to-{other}", [found[ours].long_drain], [found[other].long_drain], None)
    for name, each in found.items():
        rates = [drain.rate for drain in each.drains if drain]
        if rates and each.alone:
            ratio = median(rates) / each.alone.rate
            yield at_least(f"{name}-to-alone", median(rates), "/s", floor=each.alone.rate, ratio=ratio, target=_ALONE)
    for name, each in found.items():
        yield from _costs(name, [drain for drain in each.drains if drain])
    for name, each in found.items():
        if each.live:
            yield from _live(name, each.live)
    for name, each in found.items():
        if each.primary:
            yield from _primary(name, each.primary)
    for name, each in found.items():
        if each.failovers:
            yield from _failovers(name, each.failovers)


def rounded(value: float) -> str:
    """Write a figure for a reader."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _ratio(
    name: str, ours: Sequence[Drain | None], others: Sequence[Drain | None], target: float | None
) -> Iterator[Result]:
    rounds = [(mine, other) for mine, other in zip(ours, others, strict=False) if mine and other]
    if rounds:
        ratios = [mine.rate / other.rate for mine, other in rounds]
        yield at_least(
            name,
            median(mine.rate for mine, _ in rounds),
            "/s",
            floor=median(other.rate for _, other in rounds),
            ratio=median(ratios),
            ratios=(min(ratios), max(ratios)),
            target=target,
        )


def _costs(name: str, drains: Sequence[Drain]) -> Iterator[Result]:
    if drains:
        cpu = median(each.cpu_micros for each in drains)
        servers = median(each.servers_cpu_micros for each in drains)
        yield Result(name=f"cpu-{name}", value=cpu, unit="s/million")
        together = median(each.cpu_micros + each.servers_cpu_micros for each in drains)
        yield Result(name=f"cpu-{name}-servers", value=servers, unit="s/million")
        yield Result(name=f"cpu-{name}-together", value=together, unit="s/million")
        yield Result(name=f"memory-{name}", value=max(each.megabytes for each in drains), unit="MB")


def _live(name: str, live: Live) -> Iterator[Result]:
    yield Result(name=f"latency-{RATE}-{name}-p50", value=live.p50, unit="ms")
    yield Result(name=f"latency-{RATE}-{name}-p99", value=live.p99, unit="ms")
    if live.behind:
        yield Result(name=f"latency-{RATE}-{name}-behind", value=live.behind, unit="records")
    if live.written < _KEPT_UP * RATE:
        yield Result(name=f"latency-{RATE}-{name}-written", value=live.written, unit="/s")
    yield Result(name=f"idle-{name}", value=live.idle_percent, unit="% core")
    yield Result(name=f"idle-{name}-servers", value=live.idle_servers_percent, unit="% core")


def _primary(name: str, cost: Primary) -> Iterator[Result]:
    yield Result(name=f"primary-wal-{name}", value=cost.wal_bytes / 1_000, unit="kB")
    yield Result(name=f"primary-transactions-{name}", value=cost.transactions, unit="")
    yield Result(name=f"primary-rows-{name}", value=cost.row_versions, unit="")
    yield Result(name=f"primary-pages-{name}", value=cost.pages, unit="")
    yield Result(name=f"primary-connections-{name}", value=cost.connections, unit="")
    yield Result(name=f"primary-held-{name}", value=cost.held_bytes / 1_000, unit="kB")


def _failovers(name: str, failovers: Sequence[Failover]) -> Iterator[Result]:
    yield Result(name=f"failover-{name}", value=median(each.seconds for each in failovers), unit="s")
    yield Result(name=f"failover-{name}-longest", value=max(each.seconds for each in failovers), unit="s")
    yield Result(name=f"failover-{name}-duplicates", value=sum(each.duplicates for each in failovers), unit="records")
    yield Result(name=f"failover-{name}-lost", value=sum(each.lost for each in failovers), unit="records")
