"""The exact alerts that each fault should fire. Times are the times of the rules, before they are divided.

A fault of one of several processes, links or brokers fires no alert, however long it lasts, because the others
continue. A fault of a shared component fires alerts when it has lasted as long as the rules demand. If the effect of a
fault depends on the election, the fault is injected under both elections. If only the leader is cut off from Postgres,
a leader elected by Kafka keeps its term, because Kafka receives its heartbeats, and an alert fires. A leader elected by
a lock in Postgres loses the lock, another harvester leads, and no alert fires.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from infra.chaos.faults import FAULTS
from infra.chaos.system import Election, SystemMode

SOON_MINUTES = 0.5
"""Duration of a fault that ends before any rule can fire."""
CALLED_MINUTES = 2.5
"""Longer than the rules wait for missing progress, a missing leader or an unavailable server."""
FAILED_OVER_MINUTES = 4.0
"""Longer than the rules wait for a missing leader or server. A run divides these rules' times by a smaller factor."""
OLD_MINUTES = 7.0
"""Longer than the rules wait until a backlog counts as old and a checkpoint as stale."""

MODES = (
    SystemMode(source="snapshot", delivery="transactional"),
    SystemMode(source="transaction_id", delivery="transactional"),
)
"""Each fault is injected in the first of these modes that fits it. By default a lock in Postgres elects the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault with its duration, and the alerts that it should fire. If a fault draws its action at random, `seed`
    determines the action and `variant` names it."""

    fault: str
    minutes: float = CALLED_MINUTES
    alerts: frozenset[str] = frozenset()
    seed: int = 0
    variant: str = ""
    election: Election = "auto"

    def __str__(self) -> str:
        return f"{self.fault} ({self.variant})" if self.variant else self.fault

    def mode(self) -> SystemMode:
        """Return the mode in which the fault is injected."""
        modes = (replace(mode, election=self.election) for mode in MODES)
        return next(mode for mode in modes if FAULTS[self.fault].fits(mode))


def _quiet(*faults: str, minutes: float = CALLED_MINUTES) -> Iterator[Case]:
    return (Case(fault=fault, minutes=minutes) for fault in faults)


def _fires(fault: str, *alerts: str, minutes: float = CALLED_MINUTES) -> Case:
    return Case(fault=fault, minutes=minutes, alerts=frozenset(alerts))


def _elected_by_kafka(case: Case) -> Case:
    return replace(case, variant="elected by Kafka", election="neli")


_NOTHING_GOES = ("HarvestNoProgress", "HarvestBacklogOld", "HarvestCheckpointStale")

CASES: Sequence[Case] = (
    *_quiet("leader-killed", "leader-released", "leader-frozen", "clock-ahead", "clock-behind"),
    _fires("pool-killed", "HarvestDown", minutes=FAILED_OVER_MINUTES),
    *_quiet("postgres-cut", "postgres-unheard", "postgres-unreached"),
    *_quiet("kafka-cut", "kafka-unheard", "kafka-unreached"),
    *_quiet("latency", "network-lost", "network-lost-to-servers", "network-lost-from-servers"),
    *_quiet("network-narrow", "network-slow", "broker-killed", minutes=FAILED_OVER_MINUTES),
    *_quiet("broker-frozen", "coordinator-killed"),
    *_quiet("postgres-killed", minutes=SOON_MINUTES),
    _fires("two-brokers-killed", *_NOTHING_GOES, minutes=OLD_MINUTES),
    _fires("postgres-killed", "HarvestPostgresAway", minutes=FAILED_OVER_MINUTES),
    *_quiet("postgres-frozen", "sessions-killed", "writer-left-open", "prepared-left-open"),
    _fires("writer-waited-for", *_NOTHING_GOES, minutes=OLD_MINUTES),
    _fires("prepared-waited-for", *_NOTHING_GOES, minutes=OLD_MINUTES),
    _fires("credentials-revoked", "HarvestPostgresAway"),
    _fires("failover-sync", "HarvestPostgresAway"),
    _fires("failover-async", "HarvestPostgresAway"),
    Case(fault="disk-full-postgres", variant="tables"),
    Case(fault="disk-full-postgres", variant="tables and log", seed=1, alerts=frozenset({"HarvestPostgresAway"})),
    *_quiet("disk-full-kafka"),
    _fires("record-too-large", "HarvestRecordsParked"),
    _fires("topic-recreated", "HarvestRecordsParked"),
    *map(_elected_by_kafka, _quiet("leader-killed", "leader-frozen", "kafka-unheard")),
    *(
        _elected_by_kafka(_fires(fault, "HarvestNoProgress"))
        for fault in ("postgres-cut", "postgres-unheard", "postgres-unreached")
    ),
    _elected_by_kafka(_fires("two-brokers-killed", "HarvestNoLeader", *_NOTHING_GOES, minutes=OLD_MINUTES)),
    _elected_by_kafka(_fires("postgres-killed", "HarvestPostgresAway", minutes=FAILED_OVER_MINUTES)),
)
"""All cases, in the order of injection within a mode. Every fault has at least one case."""
