"""The result of an audit: the numbers of a row of `harvest_audit.summary`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from harvest_lib.errors import NothingChecked, OutboxTableError

MUST_BE_ZERO = (
    *("lost", "duplicates_adjacent", "duplicates_separated", "reordered", "unknown", "other_contents"),
    "keys_with_gaps",
)
"""Counts of an `AuditSummary`. The audit is `ok` only if all of these counts are zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary:
    """The numbers of an audit, with the names of the table's columns."""

    audit_id: str
    at: datetime
    """Time at which committed records were read, by Postgres's clock."""
    records: int
    """Records in Kafka, of any kind."""
    committed: int
    lost: int
    """Committed records that the harvester counts as delivered, but that are not in Kafka."""
    duplicates_adjacent: int
    """Repeated copies of a record, sent by a term that had sent the record before. In the key's sequence no other
    record is between the two copies."""
    duplicates_separated: int
    """Repeated copies of a record, sent by a term that had sent the record before. In the key's sequence other records
    are between the two copies."""
    duplicates_cross_epoch: int
    """Repeated copies of a record, sent by a term that had not sent the record before. The record was in flight when an
    earlier term ended."""
    reordered: int
    """Records whose first copy follows a record of the same key with a higher outbox id."""
    unknown: int
    """Records in Kafka that were never committed."""
    foreign_messages: int
    """Messages in the topics that no harvester sent."""
    delay_p50_ms: float | None
    """Median of the time from a record's creation to Kafka's timestamp, in milliseconds; None if nothing was
    delivered."""
    delay_p95_ms: float | None
    delay_p99_ms: float | None
    delay_max_ms: float | None
    backlog_records: int
    """Committed records that wait in the outbox."""
    backlog_age_seconds: float
    """Waiting time of the oldest record in the backlog; 0 without a backlog."""
    keys: int | None = None
    """Number of compared keys; a key counts once per topic. None if the row of a lost record was purged, so that the
    record's key is unknown."""
    keys_with_gaps: int | None = None
    """Keys with a record that is lost, out of order, unknown or of another content. All other keys are complete and in
    order. None if `keys` is None."""
    other_contents: int = 0
    """Records in Kafka that have the id of a committed record, but another value. The database was restored to an
    earlier time and assigned ids again, or a row was changed after its delivery. Such a record does not count as a
    copy."""

    @property
    def is_empty(self) -> bool:
        """True if no committed record was found, so that no delivery was checked."""
        return self.committed == 0

    @property
    def anomalies(self) -> tuple[str, ...]:
        """The names of the counts in MUST_BE_ZERO that are not zero."""
        return tuple(name for name in MUST_BE_ZERO if getattr(self, name))

    @property
    def ok(self) -> bool:
        """True if committed records were found, and all counts in MUST_BE_ZERO are zero."""
        return not self.is_empty and not self.anomalies

    def metrics(self) -> dict[str, int]:
        """Return the counts of findings, by the names that `harvest_lib.audit.textfile` writes for Prometheus."""
        counts = {name: getattr(self, name) for name in ("lost", "unknown", "other_contents", "reordered")}
        return {**counts, "unexplained_duplicates": self.duplicates_adjacent + self.duplicates_separated}

    def nothing_checked(self, allow: str) -> NothingChecked:
        """Return the error of an empty audit; `allow` is the option that allows an empty audit."""
        return NothingChecked(
            "the audit found no committed record, so it proves nothing",
            evidence=f"audit {self.audit_id}: 0 records committed, {self.records:,} messages in the topics",
            next_step=f"check the outbox, its subscription, the business table and the topics; "
            f"where they may be empty, {allow}",
        )


def require_summary(columns: Iterable[str]) -> None:
    """Raise OutboxTableError unless a table with the given columns can hold summaries."""
    there = set(columns)
    if missing := [field.name for field in fields(AuditSummary) if field.name not in there]:
        raise OutboxTableError(
            "harvest_audit.summary is not the table of audits",
            evidence=f"it lacks {', '.join(missing)}",
            next_step="as its owner: ALTER TABLE harvest_audit.summary RENAME TO summary_before; the next audit "
            "creates the table",
        )


def together(summaries: Sequence[AuditSummary]) -> AuditSummary:
    """Return a single summary for audits of different topics: the sums of counts, the longest delays, and the time of
    the oldest audit. A sum is None if any audit does not know the number."""
    oldest = min(summaries, key=lambda each: each.at)
    if len(summaries) == 1:
        return oldest
    numbers = {
        field.name: _of_all(field.name, [getattr(each, field.name) for each in summaries])
        for field in fields(AuditSummary)
        if field.name not in {"audit_id", "at"}
    }
    return AuditSummary(audit_id=f"{len(summaries)} audits since {oldest.audit_id}"[:200], at=oldest.at, **numbers)


def _of_all(name: str, values: Sequence[Any]) -> Any:
    known = [each for each in values if each is not None]
    if name.startswith("delay_") or name == "backlog_age_seconds":
        return max(known, default=None)
    return sum(known) if len(known) == len(values) else None
