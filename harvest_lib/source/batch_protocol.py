"""Protocol between a source and the loop that delivers in batches: pages of records, and the position after each.

A *position* is all that a source needs to go on where it was, and nothing else: a mapping that goes through JSON
unharmed, kept in the checkpoint of a subscription. The holder of the positions decides what was delivered; the source
remembers nothing across `open`. Records that a position has passed and that were deferred nevertheless are added to it,
by their ids, as `deferred`: a source opened there returns them first.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from harvest_lib.record import Row
from harvest_lib.record.checkpoint import Position


class Page(NamedTuple):
    """Records in the source's order, the position after them, and whether more can be had without waiting."""

    rows: Sequence[Row]
    position: Position
    more: bool


class BatchSource(Protocol):
    """Records in order, page by page. Used by one thread at a time.

    Every call raises DatabaseUnavailable when the database cannot be asked (`open` again, at the last position that was
    committed), and another HarvestError when asking again will not help.
    """

    def open(self, position: Position | None) -> Position:
        """(Re)connect if need be and go on after `position`, or from where a new subscription starts; return where that
        is. Durable when it returns."""
        ...

    def read(self, limit: int) -> Page | None:
        """Return the next records, up to `limit` and up to `PAGE_BYTES` (or one that has more), or None if there are
        none now. Returned records are committed permanently: no crash of the server takes them back. A page without
        records has a position that is worth keeping. The position names deferred records that were not returned yet."""
        ...

    def load(self, ids: Sequence[int]) -> list[Row]:
        """Return records by their ids, in that order, those that are still there, up to `PAGE_BYTES` (or one that has
        more): what comes after the last one was not looked for, if there is one. Positions are not touched."""
        ...

    def sent(self, rows: Sequence[Row]) -> None:
        """Note that rows were sent in this batch."""
        ...

    def committed(self, failed: Collection[int] = ()) -> None:
        """Note that all that was sent is in Kafka, but for `failed`, ids of records that are read again."""
        ...

    def give_back(self) -> None:
        """Give back what was read and is not delivered, at the end of a term that nobody has fenced."""
        ...

    def retention_bounds(self, position: Position) -> tuple[str, int | None]:
        """Return the low watermark of a position, a snapshot of which every visible record was read, and its retention
        hold: the lowest id that is still needed although it is visible, or None."""
        ...

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        ...
