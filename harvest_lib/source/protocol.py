"""What a source of outbox records promises to the loop that drives it."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from harvest_lib.record import Row


class Source(Protocol):
    """Records in order, fetched under one leader id at a time. Used by one thread.

    Every call raises DatabaseUnavailable when the database cannot be asked (the outcome of the call is then unknown:
    `open` again, under a new leader id), and another DatabaseError when asking again will not help.
    """

    def open(self, leader_id: UUID) -> None:
        """(Re)connect if need be and work under `leader_id` from now on."""
        ...

    def fetch(self, limit: int) -> list[Row]:
        """Return up to `limit` records that this leader id has not seen, ascending by id."""
        ...

    def acknowledge(self, ids: Sequence[int]) -> None:
        """Record durably that these were delivered; none of them is fetched again. Safe to repeat."""
        ...

    def reset(self, ids: Sequence[int]) -> None:
        """Give back records that were fetched and not delivered. Leaves alone what another leader has taken."""
        ...

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        ...
