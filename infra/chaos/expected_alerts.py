"""Alerts that each fault should fire, and no other. Times here are the times of the rules, before they are divided.

A fault of one process, link or broker of several fires nothing, however long it lasts: the rest goes on. A fault of a
shared part fires the alerts of the rules, once it has lasted as long as their times. A fault whose effect depends on
the election is injected for both. A leader that Kafka has elected goes on leading while it alone is cut off from
Postgres, since Kafka receives its heartbeats, so an alert fires; a leader that has a lock in Postgres loses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from infra.chaos.faults import FAULTS
from infra.chaos.system import Election, SystemMode

SOON_MINUTES = 0.5
"""A fault that is over before any rule's time has come."""
CALLED_MINUTES = 2.5
"""Longer than an alert takes for missing progress, a missing leader or an unavailable server."""
FAILED_OVER_MINUTES = 4.0
"""Longer than an alert takes for a missing leader or server, in a run that divides such times by less."""
OLD_MINUTES = 7.0
"""Longer than it takes until a backlog is old and a checkpoint stale."""

MODES = (
    SystemMode(source="snapshot", delivery="transactional"),
    SystemMode(source="transaction_id", delivery="transactional"),
)
"""In the first of them that it fits a fault is injected. The leader is elected as by default: by a lock in Postgres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault with its duration, and the alerts that it should fire. Where a fault draws its action, the seed
    decides that, and `variant` names it."""

    fault: str
    minutes: float = CALLED_MINUTES
    alerts: frozenset[str] = frozenset()
    seed: int = 0
    variant: str = ""
    election: Election = "auto"

    def __str__(self) -> str:
        return f"{self.fault} ({self.variant})" if self.variant else self.fault

    def mode(self) -> SystemMode:
        """Return the mode in which it is injected."""
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
"""In the order in which they are injected. Every fault has a case."""
