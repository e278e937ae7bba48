"""Report of an audit: counts, a few examples of each anomaly, and the records of each term.

A report never contains a value. It contains keys only on request, because keys may be personal data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example of an anomaly. `topic`, `partition` and `offset` are None for a record that is not in Kafka (lost,
    pending). `key` is None unless keys were requested."""

    id: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of duplicates: `count` records of the term `old_leader` were sent again by the later term
    `new_leader`."""

    old_leader: UUID
    new_leader: UUID
    count: int

    def __str__(self) -> str:
        records = "record" if self.count == 1 else "records"
        return f"{self.count} {records} sent by leader {self.old_leader}, again by leader {self.new_leader}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedKeys:
    """Keys that moved to a partition. `keys` is the number of keys that were in another partition of the topic before.
    `first_ms` (Kafka's timestamp, milliseconds) and `first_offset` belong to the first record of such a key in this
    partition."""

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
    """Number of a term's records in Kafka, and their first and last timestamp (Kafka's, milliseconds)."""

    leader: UUID
    records: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Result of the comparison of committed records with the records in Kafka.

    `records == delivered + purged + unknown + other_contents + duplicates + foreign`. `committed` is the sum of
    `delivered`, `lost` and the committed records that are still pending.
    """

    records: int
    """All records in Kafka."""
    committed: int
    delivered: int
    """Committed records that are in Kafka, each counted once."""
    pending: int
    """Records that wait in the outbox and are not in Kafka yet."""
    lost: int
    """Committed records that are neither in Kafka nor pending."""
    unknown: int
    """Ids in Kafka that were never committed."""
    purged: int
    """Ids in Kafka that the outbox no longer has. 0 unless the outbox is the only source of committed records."""
    foreign: int
    """Records in Kafka without an id. Another program sent them."""
    other_contents: int
    """Records in Kafka with another value than the committed record of the same id. Either the database was restored to
    an earlier time and ids were assigned again, or a row was changed after its delivery. Such records do not count as
    copies of the committed record."""
    wrong_keys: int
    """Records in Kafka with another key than the committed record."""
    duplicates: int
    adjacent_duplicates: int
    """Copies that directly follow another copy of the same record: no other record of their key is between the two in
    the partition."""
    separated_duplicates: int
    """All other copies, for example a copy that follows another record of its key."""
    unexplained_duplicates: int
    """Copies of a record that the same term sent twice, and copies whose sender is unknown because a header is
    missing."""
    reordered: int
    """Records with a smaller id than the previous record of their key in the partition. Only the first copy of each
    record in the partition is considered."""
    order_violations: int
    """Records with a smaller id than the previous record of their key in the partition, copies included."""
    split_keys: int
    """Keys with records in several partitions of a topic. The records of such a key have no order."""
    explanations: tuple[Explanation, ...] = ()
    leaders: tuple[LeaderStatistics, ...] = ()
    """The terms, ordered by the timestamp of their first record."""
    moved_keys: tuple[MovedKeys, ...] = ()
    """The partitions to which the split keys moved, with the first record of a moved key in each."""
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    """The first occurrences of each anomaly. The key is the name of the anomaly's count, such as `lost`. An anomaly
    that was not found has no entry."""

    @property
    def explained_duplicates(self) -> int:
        """Number of copies that a later term sent: the records were in flight when the former term ended."""
        return self.duplicates - self.unexplained_duplicates

    @property
    def is_empty(self) -> bool:
        """True if nothing was compared: no record was committed or is pending, and Kafka has no record with an id."""
        return not (self.committed or self.pending or self.records - self.foreign)

    @property
    def ok(self) -> bool:
        """True if something was compared, and all counts in `MUST_BE_ZERO` are zero."""
        return not self.is_empty and not any(getattr(self, name) for name in MUST_BE_ZERO)

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that `json.dumps` accepts."""
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
"""Names of the counts that must be zero for an `AuditReport` to be `ok`."""
