"""The two streams an audit compares, as tuples: committed records, and records in Kafka.

They are tuples because an audit passes millions of them straight into SQL.
"""

from hashlib import sha256
from typing import NamedTuple

_CONTENT_BYTES = 8

CONTENT = f"coalesce(substr(sha256({{value}}), 1, {_CONTENT_BYTES}), ''::bytea)"
"""Expression of Postgres for the content of a record, over the bytes of its value. It equals `content_of`."""


def content_of(value: bytes | None) -> bytes:
    """Return a digest that distinguishes values under the same id: 8 bytes, empty for a tombstone."""
    return sha256(value).digest()[:_CONTENT_BYTES] if value is not None else b""


class CommittedRecord(NamedTuple):
    """A record that some transaction committed: its id, its key, and its content, see `content_of` (None: not known, so
    not compared)."""

    id: int
    key: bytes | None = None
    content: bytes | None = None


class ObservedRecord(NamedTuple):
    """A record found in Kafka.

    `id` is None for a record without an id (foreign). `leader` is the id of the sending term as 16 bytes, None
    without a `harvest` header. `timestamp_ms` is Kafka's, producer's or broker's as the topic is configured. `content`
    identifies its value, see `content_of`; None if it is not to be compared.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    id: int | None
    leader: bytes | None = None
    content: bytes | None = None
