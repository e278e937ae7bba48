"""Protocol between a source that claims outbox records and the loop that drives it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from harvest_lib.record import Row


class ClaimedRows(NamedTuple):
    """The result of a fetch: records ascending by id, and of their keys those that have a parked record, by topic and
    key, with the lowest id of one. Both are of one moment: no key is parked or released in between."""

    rows: Sequence[Row]
    parked: Mapping[tuple[str, str], int]
    more: bool = False
    """True if there may be more at once: the limit was reached, or as many bytes as are read at a time."""
    server: Mapping[str, str] = {}
    """The place in the server's log before which all of the rows were committed, if the source knows it."""


class ClaimSource(Protocol):
    """Records in order, fetched under one leader id at a time. Used by one thread at a time.

    Every call raises DatabaseUnavailable when the database cannot be asked (the outcome of the call is then unknown:
    `open` again, under a new leader id), and another DatabaseError when asking again will not help.
    """

    def open(self, leader_id: UUID) -> None:
        """(Re)connect if need be and work under `leader_id` from now on."""
        ...

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        """Record durably that `delivered` were delivered, none of which is fetched again, and return up to `limit`
        records that this leader id has not seen, ascending by id, up to `PAGE_BYTES` (or one that has more). One
        transaction; safe to repeat."""
        ...

    def reset(self, ids: Sequence[int]) -> None:
        """Give back records that were fetched, under this leader id or an earlier one, and not delivered. Leaves alone
        records that another leader has taken."""
        ...

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        """Park the records `refused` (id and reason), and of those `behind` them each one whose key has a parked record
        of its topic before it; return the ids of the others, released meanwhile. Durable, one transaction."""
        ...

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        ...
