"""Result of an audit as a row: the numbers of `harvest_audit.summary`.

Outside of `harvest_lib.spark.audit`, which needs Spark: readers of the table do not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from harvest_lib.errors import NothingChecked, OutboxTableError

MUST_BE_ZERO = (
    *("lost", "duplicates_adjacent", "duplicates_separated", "reordered", "unknown", "other_contents"),
    "keys_with_gaps",
)
"""The counts of an `AuditSummary` that make it not `ok`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary:
    """The numbers of an audit, named as the columns of the table are."""

    audit_id: str
    at: datetime
    """Time at which committed records were read, by Postgres's clock."""
    records: int
    """Records in Kafka, of any kind."""
    committed: int
    lost: int
    """Committed records that the harvester has passed and that are not in Kafka."""
    duplicates_adjacent: int
    """Copies by a term that had sent the record before, which directly follow it in their key's sequence."""
    duplicates_separated: int
    """Copies by a term that had sent the record before, with other records of their key between."""
    duplicates_cross_epoch: int
    """Copies that a term sent after another term had: in flight when that term ended."""
    reordered: int
    """Steps back among the first occurrences of a key's records."""
    unknown: int
    """Records in Kafka that were never committed."""
    foreign_messages: int
    """Messages in the topics that no harvester sent."""
    delay_p50_ms: float | None
    """From the record's creation to Kafka's timestamp; None where nothing was delivered."""
    delay_p95_ms: float | None
    delay_p99_ms: float | None
    delay_max_ms: float | None
    backlog_records: int
    """Committed records that wait in the outbox."""
    backlog_age_seconds: float
    """Waiting time of the oldest of them; 0 if there are none."""
    keys: int | None = None
    """Keys whose records were compared, of each topic. None if a record is lost and its row was purged: then its key
    is unknown."""
    keys_with_gaps: int | None = None
    """Keys with a record that is lost, out of order, unknown or of another content. All other keys are complete, in
    order. None where `keys` is."""
    other_contents: int = 0
    """Records in Kafka under an id whose committed record has another value: the database was put back to an earlier
    time and ids came again, or a row was changed after it was delivered. They are no copies of that record."""

    @property
    def is_empty(self) -> bool:
        """True if no committed record was found, so that no delivery was checked."""
        return self.committed == 0

    @property
    def anomalies(self) -> tuple[str, ...]:
        """The counts that must be zero and are not."""
        return tuple(name for name in MUST_BE_ZERO if getattr(self, name))

    @property
    def ok(self) -> bool:
        """True if committed records were found, and every count that must be zero is."""
        return not self.is_empty and not self.anomalies

    def nothing_checked(self, allow: str) -> NothingChecked:
        """Return the error of an empty audit; `allow` is the option that allows an empty audit."""
        return NothingChecked(
            "the audit found no committed record, so it proves nothing",
            evidence=f"audit {self.audit_id}: 0 records committed, {self.records:,} messages in the topics",
            next_step=f"check the outbox, its subscription, the business table and the topics; "
            f"where they may be empty, {allow}",
        )


def require_summary(columns: Iterable[str]) -> None:
    """Raise OutboxTableError unless these columns are a table of summaries."""
    there = set(columns)
    if missing := [field.name for field in fields(AuditSummary) if field.name not in there]:
        raise OutboxTableError(
            "harvest_audit.summary is not the table of audits",
            evidence=f"it lacks {', '.join(missing)}",
            next_step="as its owner: ALTER TABLE harvest_audit.summary RENAME TO summary_before; the next audit "
            "creates the table",
        )


def together(summaries: Sequence[AuditSummary]) -> AuditSummary:
    """Return one summary of audits that each read other topics: their sums, as of the oldest, with the delays of the
    slowest. A number that an audit does not know is None."""
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
