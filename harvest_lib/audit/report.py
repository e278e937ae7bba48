"""Report of an audit: numbers, a few examples of each anomaly, and the records of each term.

A report never holds a value, and holds keys only on request: keys may be personal data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Place of an anomaly. A record that is not in Kafka (lost, pending) has no place there."""

    id: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`count` records were in Kafka from `old_leader` when `new_leader`, a later term, sent them again."""

    old_leader: UUID
    new_leader: UUID
    count: int

    def __str__(self) -> str:
        records = "record" if self.count == 1 else "records"
        return f"{self.count} {records} sent by leader {self.old_leader}, again by leader {self.new_leader}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedKeys:
    """Number of keys of a topic in this partition that were in another partition before; the first record of such a key
    here has this timestamp (Kafka's, milliseconds) and offset."""

    topic: str
    partition: int
    keys: int
    first_ms: int
    first_offset: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.first_ms / 1000, UTC).isoformat(timespec="milliseconds")
        keys = "key" if self.keys == 1 else "keys"
        return (
            f"{self.keys} {keys} moved to {self.topic}/{self.partition}, from {at} on, offset {self.first_offset}: "
            "partitions were added, or another producer chooses them otherwise"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderStatistics:
    """Records of a term in Kafka, and their first and last timestamp (Kafka's, milliseconds)."""

    leader: UUID
    records: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Result of comparing committed records with the records in Kafka.

    `records == delivered + purged + unknown + other_contents + duplicates + foreign`, and `committed == delivered +
    lost` plus the committed records that are `pending`.
    """

    records: int
    """Records in Kafka, of any kind."""
    committed: int
    delivered: int
    """Committed records that are in Kafka, each counted once."""
    pending: int
    """Records that wait in the outbox and are not in Kafka yet."""
    lost: int
    """Committed records that neither are in Kafka nor wait in the outbox."""
    unknown: int
    """Ids in Kafka that were never committed."""
    purged: int
    """Ids in Kafka that the outbox no longer has, where the outbox is the only source of committed records."""
    foreign: int
    """Records in Kafka without an id: another program's."""
    other_contents: int
    """Records in Kafka under an id whose committed record has another value: the database was put back to an earlier
    time and ids came again, or a row was changed after it was delivered. They are no copies of that record."""
    wrong_keys: int
    """Records in Kafka under another key than was committed."""
    duplicates: int
    adjacent_duplicates: int
    """Copies that directly follow the same record in their key's sequence."""
    separated_duplicates: int
    """Copies with other records of their key between."""
    unexplained_duplicates: int
    """Copies sent twice by the same term, or without a header that names the sender."""
    reordered: int
    """Steps back among the first occurrences of a key's records."""
    order_violations: int
    """Steps back of a key in the order of the log, repeats included."""
    split_keys: int
    """Keys whose records are in several partitions of one topic, so that they have no order."""
    explanations: tuple[Explanation, ...] = ()
    leaders: tuple[LeaderStatistics, ...] = ()
    """In order of their first record."""
    moved_keys: tuple[MovedKeys, ...] = ()
    """Partitions that the split keys moved to, and since when."""
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    """The first few of each anomaly, by the name of its count; anomalies that were not found are not there."""

    @property
    def explained_duplicates(self) -> int:
        """Copies that a term sent after another term had: in flight when that term ended."""
        return self.duplicates - self.unexplained_duplicates

    @property
    def is_empty(self) -> bool:
        """True if nothing was compared: nothing was committed or waits, and Kafka has no record of the harvester."""
        return not (self.committed or self.pending or self.records - self.foreign)

    @property
    def ok(self) -> bool:
        """True if something was compared, and every count that must be zero is."""
        return not self.is_empty and not any(getattr(self, name) for name in MUST_BE_ZERO)

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that `json.dumps` takes."""
        document = _DOCUMENT.dump_python(self, mode="json")
        return {"ok": self.ok, "explained_duplicates": self.explained_duplicates, **document}


_DOCUMENT = TypeAdapter(AuditReport)

MUST_BE_ZERO = (
    "lost",
    "unknown",
    "other_contents",
    "wrong_keys",
    "unexplained_duplicates",
    "reordered",
    "order_violations",
    "split_keys",
)
"""The counts of an `AuditReport` that make it not `ok`."""
