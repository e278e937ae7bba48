"""Protocol between a source that claims outbox records and the loop that drives it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from harvest_lib.record import Row


class ClaimedRows(NamedTuple):
    """The result of a fetch: records ascending by id, and the lowest parked id by (topic, key), for the keys of the
    records. Both are of the same moment: no key is parked or released in between."""

    rows: Sequence[Row]
    parked: Mapping[tuple[str, str], int]
    more: bool = False
    """True if more records may be ready: the limit of rows or of bytes was reached."""
    server: Mapping[str, str] = {}
    """The place in the server's log before which all of the rows were committed, if the source knows it."""


class ClaimSource(Protocol):
    """Records in order, fetched under a single leader id at a time. Used by a single thread at a time.

    Every call raises DatabaseUnavailable when the database does not answer (the outcome of the call is then unknown:
    `open` again, under a new leader id), and another DatabaseError when a retry will not help.
    """

    def open(self, leader_id: UUID) -> None:
        """(Re)connect if need be and work under `leader_id` from now on."""
        ...

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        """Purge the `delivered` ids durably: they are never fetched again. Return up to `limit` records that this
        leader id has not fetched, ascending by id, up to `PAGE_BYTES` (or a single larger record). One transaction;
        safe to repeat."""
        ...

    def reset(self, ids: Sequence[int]) -> None:
        """Give back records that were fetched, under this leader id or an earlier id, and not delivered. Leaves alone
        records that another leader has taken."""
        ...

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        """Park the records `refused` (id and reason). Hold each record of `behind` after a parked record of its topic
        and key; return the other ids of `behind`, whose keys were released meanwhile. Durable, one transaction."""
        ...

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        ...
