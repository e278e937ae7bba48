"""Protocol between a source and the loop that delivers in batches: pages of records, and the position after each.

A *position* is all that a source needs to continue, and nothing else: a mapping that survives JSON, kept in the
checkpoint of a subscription. The holder of the positions decides which records were delivered; the source keeps nothing
across `open`. A position names the deferred records that it has passed, by their ids, as `deferred`: a source opened
there returns them first.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from harvest_lib.record import Row
from harvest_lib.record.checkpoint import Position


class Page(NamedTuple):
    """Records in the source's order, the position after them, and whether more are ready."""

    rows: Sequence[Row]
    position: Position
    more: bool


class BatchSource(Protocol):
    """Records in order, page by page. Used by a single thread at a time.

    Every call raises DatabaseUnavailable when the database does not answer (`open` again, at the last position that was
    committed), and another HarvestError when a retry will not help.
    """

    def open(self, position: Position | None) -> Position:
        """(Re)connect if need be and continue after `position`, or at the start of a new subscription; return the
        position. Durable when it returns."""
        ...

    def read(self, limit: int) -> Page | None:
        """Return the next records, up to `limit` and up to `PAGE_BYTES` (or a single larger record), or None if no
        record is ready. Returned records are committed permanently: no crash of the server takes them back. The
        position of a page without records should be saved. The position names deferred records that were not returned
        yet."""
        ...

    def load(self, ids: Sequence[int]) -> list[Row]:
        """Return the records that still exist, in the order of `ids`, up to `PAGE_BYTES` (or a single larger record).
        Ids after the last returned record were not read. Positions are not touched."""
        ...

    def sent(self, rows: Sequence[Row]) -> None:
        """Note that rows were sent in this batch."""
        ...

    def committed(self, failed: Collection[int] = ()) -> None:
        """Note that all sent records are in Kafka, except `failed`, the ids of records that are read again."""
        ...

    def give_back(self) -> None:
        """Give back records that were read and not delivered, at the end of a term that is not fenced."""
        ...

    def retention_bounds(self, position: Position) -> tuple[str, int | None]:
        """Return a position's low watermark and retention hold. Every record visible in the low watermark, a snapshot,
        was read. The retention hold is the lowest visible id that is still needed, or None."""
        ...

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        ...
