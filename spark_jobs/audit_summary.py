"""What an audit found, in one row: the numbers of `harvest_audit.summary`.

Outside of `spark_jobs.audit`, which needs Spark: whoever reads the table does not.
"""

from dataclasses import dataclass
from datetime import datetime

from harvest_lib.errors import NothingChecked

MUST_BE_ZERO = ("lost", "duplicates_adjacent", "duplicates_separated", "reordered", "unknown")
"""The counts of an `AuditSummary` that make it not `ok`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary:
    """The numbers of one audit, named as the columns of the table are."""

    audit_id: str
    at: datetime
    """When what was committed was read, by Postgres's clock."""
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
    """Copies that one term sent after another had: in flight when that term ended."""
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
    """How long the oldest of them has waited; 0 if there are none."""

    @property
    def is_empty(self) -> bool:
        """Whether no committed record was found, so that no delivery was checked."""
        return self.committed == 0

    @property
    def anomalies(self) -> tuple[str, ...]:
        """The counts that must be zero and are not."""
        return tuple(name for name in MUST_BE_ZERO if getattr(self, name))

    @property
    def ok(self) -> bool:
        """Whether committed records were found, and every count that must be zero is."""
        return not self.is_empty and not self.anomalies

    def nothing_checked(self, allow: str) -> NothingChecked:
        """Return the error of an audit that is empty; `allow` says how an empty one is allowed."""
        return NothingChecked(
            "the audit found no committed record, so it proves nothing",
            evidence=f"audit {self.audit_id}: 0 records committed, {self.records:,} messages in the topics",
            next_step=f"check the outbox, its subscription, the business table and the topics; "
            f"where they may be empty, {allow}",
        )
