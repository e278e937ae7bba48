"""The records of the two streams that an audit compares: committed records, and records in Kafka.

They are tuples, because an audit passes millions of them directly to SQL.
"""

from hashlib import sha256
from typing import NamedTuple

_CONTENT_BYTES = 8

MUST_COME, PARKED, WAITS = 0, 1, 2
"""States of a committed record: the harvester has delivered the record, could not send it, or has not reached it
yet."""

CONTENT = f"coalesce(substr(sha256({{value}}), 1, {_CONTENT_BYTES}), ''::bytea)"
"""SQL expression of Postgres for a record's content, from the bytes of its value. Its result equals `content_of`."""


def content_of(value: bytes | None) -> bytes:
    """Return a digest of a value, to distinguish values with the same id. The digest has 8 bytes. The digest of a
    tombstone (None) is empty."""
    return sha256(value).digest()[:_CONTENT_BYTES] if value is not None else b""


class CommittedRecord(NamedTuple):
    """A record that a transaction committed: id, key and content (see `content_of`). A key or content of None is
    unknown and not compared."""

    id: int
    key: bytes | None = None
    content: bytes | None = None


class ObservedRecord(NamedTuple):
    """A record found in Kafka.

    `id` is None for a record without an id (foreign). `leader` is the id of the sending term as 16 bytes, None without
    a header `harvest`. `timestamp_ms` is the record's timestamp in Kafka: the producer's or the broker's time, as the
    topic is configured. `content` identifies the value, see `content_of`; None if the value is not compared.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    id: int | None
    leader: bytes | None = None
    content: bytes | None = None
