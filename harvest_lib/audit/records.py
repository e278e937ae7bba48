"""The two streams an audit compares, as tuples: committed records, and records in Kafka.

They are tuples because an audit passes millions of them straight into SQL.
"""

from typing import NamedTuple


class CommittedRecord(NamedTuple):
    """A record that some transaction committed: its id, and its key (None: not known, so not compared)."""

    id: int
    key: bytes | None = None


class ObservedRecord(NamedTuple):
    """A record found in Kafka.

    `id` is None for a record without one (foreign). `leader` is the 16 bytes of the id of the term that sent it, None
    without a `harvest` header. `timestamp_ms` is Kafka's, producer's or broker's as the topic is configured.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    id: int | None
    leader: bytes | None = None
