"""Identity of the last record that was read from a partition. It shows later whether the partition's log was replaced.

A log may lose its end (an unclean leader election, a restored volume) and then grow past the reader's position again.
Topic id and offsets are then the same as before, and only the record at the offset differs. No I/O.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from harvest_lib.record.header import headers_of

_DIGEST_BYTES = 8


class LastRead(NamedTuple):
    """Offset and timestamp (in milliseconds; -1 without a timestamp) of a record, and a digest of its key, headers and
    value. An unknown digest is "".
    """

    offset: int
    timestamp: int
    digest: str = ""

    @classmethod
    def of(cls, record: Any) -> "LastRead":
        """Return the identity of a client's record. The record must be unchanged since the client returned it."""
        value, headers = record.value(), list(headers_of(record) or ())
        rest = blake2b(repr((record.key(), headers, value is None)).encode(), digest_size=_DIGEST_BYTES)
        rest.update(value or b"")
        return cls.at(record)._replace(digest=rest.hexdigest())

    @classmethod
    def at(cls, record: Any) -> "LastRead":
        """Return the identity of a record without a digest, because its content may have been changed in memory."""
        return cls(record.offset(), record.timestamp()[1])

    @classmethod
    def of_json(cls, value: Sequence[Any] | None) -> "LastRead | None":
        """Return the identity from its form in JSON, a list; None for None."""
        return None if value is None else cls(*value)

    def fits(self, record: Any) -> bool:
        """Return True if `record` has this offset and timestamp, and has this digest or the digest is unknown."""
        found = self.of(record)
        return found[:2] == self[:2] and self.digest in {"", found.digest}
