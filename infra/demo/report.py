"""Computes the numbers of `report.json` from the samples of a run and from its audits.

It does no I/O and reads no clock. Input times are Unix times: milliseconds in the audit, and seconds elsewhere. Output
times are seconds since the act began.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from harvest_lib.audit import AuditReport, LeaderStatistics
from infra.demo.loading import Month
from infra.harvester import Lead

KILLS = 2

_RATE_SECONDS = 1.1
_COUNTS = (
    *("committed", "delivered", "lost", "reordered", "order_violations", "unknown", "duplicates"),
    "unexplained_duplicates",
)
"""Numbers that the report takes over from the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample: the numbers of committed rows and of records in Kafka, duplicates included."""

    at: float
    committed: int
    in_kafka: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A SIGKILL of the leader, with the numbers of records in Kafka and of waiting records at that time."""

    at: float
    victim: Lead
    in_kafka: int
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All observations of an act."""

    began: float
    wall_seconds: float
    stop_seconds: float
    samples: Sequence[Sample]
    kills: Sequence[Kill]
    leads: Sequence[Lead]
    months: Sequence[Month]
    exactly_once: bool = False
    """True if no duplicate is allowed."""


ACTS = ("at_least_once", "exactly_once")


def whole(at_least_once: Mapping[str, Any], exactly_once: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the content of `report.json`: both acts, and the fields in `more`. These are `versions`, and
    `wall_seconds` with the start of the servers included."""
    acts = dict(zip(ACTS, (at_least_once, exactly_once), strict=True))
    return {"ok": all(act["ok"] for act in acts.values()), **acts, **more}


def document(seen: Seen, audit: AuditReport) -> dict[str, Any]:
    """Return the report of an act."""
    failovers = [_failover(kill, seen, audit) for kill in seen.kills]
    times = [failover["seconds"] for failover in failovers if failover["seconds"] is not None]
    complete = len(times) == len(failovers) == KILLS
    return {
        "ok": audit.ok
        and complete
        and audit.delivered == audit.committed > 0
        and not (seen.exactly_once and audit.duplicates),
        "exactly_once": seen.exactly_once,
        **{name: getattr(audit, name) for name in _COUNTS},
        "records_per_second": round(_rate(audit.delivered, _span(audit.leaders))),
        "failover_seconds": max(times) if complete else None,
        "wall_seconds": round(seen.wall_seconds, 1),
        "working_records_per_second": round(
            _rate(
                sum(leader.records for leader in audit.leaders),
                sum(_span([leader]) for leader in audit.leaders),
            )
        ),
        "written_rows_per_second": round(
            _rate(sum(month.rows for month in seen.months), sum(month.seconds for month in seen.months))
        ),
        "stop_seconds": round(seen.stop_seconds, 2),
        "failovers": failovers,
        "explanations": [
            {"count": each.count, "old_leader": str(each.old_leader), "new_leader": str(each.new_leader)}
            for each in audit.explanations
        ],
        "terms": [_term(leader, seen) for leader in audit.leaders],
        "months": [
            {"batch": month.batch, "rows": month.rows, "at": _since(seen, month.at), "seconds": round(month.seconds, 3)}
            for month in seen.months
        ],
        "samples": _series(seen, audit),
        "audit": audit.to_json(),
    }


def _failover(kill: Kill, seen: Seen, audit: AuditReport) -> dict[str, Any]:
    """Return the report of a failover. `seconds` is the time from the SIGKILL until Kafka had a record of another
    harvester; None if no such record came."""
    owners = {lead.leader_id: lead for lead in seen.leads}
    after = [
        leader
        for leader in audit.leaders
        if leader.first_ms >= kill.at * 1000
        and (leader.leader not in owners or owners[leader.leader].harvester != kill.victim.harvester)
    ]
    successor = min(after, key=lambda leader: leader.first_ms, default=None)
    lead = owners.get(successor.leader) if successor is not None else None
    return {
        "killed_at": _since(seen, kill.at),
        "harvester": kill.victim.harvester,
        "leader": str(kill.victim.leader_id),
        "in_kafka": kill.in_kafka,
        "backlog": kill.backlog,
        "seconds": round(successor.first_ms / 1000 - kill.at, 3) if successor is not None else None,
        "elected_seconds": round(lead.at - kill.at, 3) if lead is not None else None,
        "successor": lead.harvester if lead is not None else None,
        "successor_leader": str(successor.leader) if successor is not None else None,
    }


def _term(leader: LeaderStatistics, seen: Seen) -> dict[str, Any]:
    owners = {lead.leader_id: lead.harvester for lead in seen.leads}
    return {
        "leader": str(leader.leader),
        "harvester": owners.get(leader.leader),
        "records": leader.records,
        "first": _since(seen, leader.first_ms / 1000),
        "last": _since(seen, leader.last_ms / 1000),
    }


def _series(seen: Seen, audit: AuditReport) -> list[dict[str, float | int]]:
    """Return backlog and throughput over time. A throughput is the mean of at most the last 1.1 s.

    Records that a term sent again count as records in Kafka, but do not reduce the backlog.
    """
    firsts: dict[UUID, float] = {leader.leader: leader.first_ms / 1000 for leader in audit.leaders}
    repeats = [(firsts[each.new_leader], each.count) for each in audit.explanations if each.new_leader in firsts]
    series: list[dict[str, float | int]] = []
    window: deque[Sample] = deque()
    for sample in seen.samples:
        ends = [kill.at for kill in seen.kills if kill.at <= sample.at]  # a mean does not span a kill
        while window and window[0].at < max([sample.at - _RATE_SECONDS, *ends]):
            window.popleft()
        before = window[0] if window else sample
        repeated = sum(count for at, count in repeats if at <= sample.at)
        delivered = min(max(0, sample.in_kafka - repeated), sample.committed)
        series.append(
            {
                "at": _since(seen, sample.at),
                "committed": sample.committed,
                "in_kafka": sample.in_kafka,
                "backlog": sample.committed - delivered,
                "records_per_second": round(_rate(sample.in_kafka - before.in_kafka, sample.at - before.at)),
            }
        )
        window.append(sample)
    return series


def _span(leaders: Sequence[LeaderStatistics]) -> float:
    """Return the seconds from the first to the last record of these leaders in Kafka."""
    if not leaders:
        return 0.0
    return (max(leader.last_ms for leader in leaders) - min(leader.first_ms for leader in leaders)) / 1000


def _rate(records: int, seconds: float) -> float:
    return records / seconds if seconds > 0 else 0.0


def _since(seen: Seen, at: float) -> float:
    return round(at - seen.began, 3)
