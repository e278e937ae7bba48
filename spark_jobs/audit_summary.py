"""What an audit found, in one row: the numbers of `harvest_audit.summary`.

Outside of `spark_jobs.audit`, which needs Spark: whoever reads the table does not.
"""

from dataclasses import dataclass
from datetime import datetime

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
    def ok(self) -> bool:
        """Whether every count that must be zero is."""
        return not any(getattr(self, name) for name in MUST_BE_ZERO)
