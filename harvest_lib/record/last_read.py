"""The record of a partition that was read last: evidence, beside a position, that the log is the same.

A log that lost its end (an unclean election of a leader, a volume that was put back) may grow past a position again.
Topic id and offsets are then as before, and only the record differs. Pure.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from harvest_lib.record.header import headers_of

_DIGEST_BYTES = 8


class LastRead(NamedTuple):
    """Offset and timestamp (in milliseconds, -1 if none) of a record, and a digest of the rest; "" if unknown."""

    offset: int
    timestamp: int
    digest: str = ""

    @classmethod
    def of(cls, record: Any) -> "LastRead":
        """Return the identity of a client's record, which must be unchanged since it came."""
        value, headers = record.value(), list(headers_of(record) or ())
        rest = blake2b(repr((record.key(), headers, value is None)).encode(), digest_size=_DIGEST_BYTES)
        rest.update(value or b"")
        return cls.at(record)._replace(digest=rest.hexdigest())

    @classmethod
    def at(cls, record: Any) -> "LastRead":
        """Return the identity, without a digest, of a record with content that may have been changed."""
        return cls(record.offset(), record.timestamp()[1])

    @classmethod
    def of_json(cls, value: Sequence[Any] | None) -> "LastRead | None":
        """Return the `LastRead` of a list from JSON; None for None."""
        return None if value is None else cls(*value)

    def fits(self, record: Any) -> bool:
        """Return True if a record is the same, as far as is known."""
        found = self.of(record)
        return found[:2] == self[:2] and self.digest in {"", found.digest}
