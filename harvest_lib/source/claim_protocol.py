"""Protocol between a source that claims outbox records and the loop that drives it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from harvest_lib.record import Row


class ClaimedRows(NamedTuple):
    """The result of a fetch. `rows` are records, ascending by id. `parked` maps each (topic, key) with parked records
    to its lowest parked id, for the keys of `rows`. Both describe the same moment: no key is parked or released between
    the two reads."""

    rows: Sequence[Row]
    parked: Mapping[tuple[str, str], int]
    more: bool = False
    """True if more records may be ready: the limit of rows or of bytes was reached."""
    server: Mapping[str, str] = {}
    """A WAL location after the commits of all rows. Empty if the source does not determine it."""


class ClaimSource(Protocol):
    """A source that fetches records in order, under a single leader id at a time. A single thread uses it at a time.

    Every call raises DatabaseUnavailable if the database does not answer. The outcome of the call is then unknown, and
    the caller must call `open` with a new leader id. Every call raises another DatabaseError if a retry will not help.
    """

    def open(self, leader_id: UUID) -> None:
        """Connect if there is no connection, and claim records under `leader_id` from now on."""
        ...

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        """Purge the records with the ids `delivered` durably, so that no fetch returns them again. Then return up to
        `limit` records that this leader id has not fetched, ascending by id, up to `PAGE_BYTES` (or a single larger
        record). Purge and fetch share a transaction. The call is safe to repeat."""
        ...

    def reset(self, ids: Sequence[int]) -> None:
        """Release undelivered records that this source has fetched, under its current or an earlier leader id. Records
        that another leader has claimed since then do not change."""
        ...

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        """Park the records `refused`, which maps ids to reasons. Also park each record of `behind`, provided that an
        earlier record of the same topic and key is still parked. Return the ids of `behind` that were not parked,
        because their keys were released in the meantime. All changes are in one transaction, which is durable when
        `park` returns."""
        ...

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        ...
