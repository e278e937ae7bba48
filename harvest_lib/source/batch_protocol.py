"""Protocol between a source and the loop that delivers in batches: the source returns pages of records and positions.

A *position* contains everything that a source needs to continue, and nothing else. It is a mapping that can be written
as JSON, and is stored in the checkpoint of a subscription. The code that stores positions decides which records were
delivered; a source carries no state over to the next `open`. The entry `deferred` of a position lists the ids of
records before the position that were not delivered. A source opened at the position returns these records first.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from harvest_lib.record import Row
from harvest_lib.record.checkpoint import Position


class Page(NamedTuple):
    """Records in the source's order, the position after the last record, and whether more records are ready."""

    rows: Sequence[Row]
    position: Position
    more: bool


class BatchSource(Protocol):
    """A reader of records in order, page by page. A single thread uses it at a time.

    Every call raises DatabaseUnavailable if the database does not answer; the caller then calls `open` with the last
    committed position. Every call raises another HarvestError if a retry will not help.
    """

    def open(self, position: Position | None) -> Position:
        """Connect if there is no connection, and continue after `position`; None begins a new subscription. Return the
        position at which reading continues. The position is durable when `open` returns."""
        ...

    def read(self, limit: int) -> Page | None:
        """Return the next records, up to `limit` and up to `PAGE_BYTES` (or a single larger record), or None if no
        record is ready. Returned records are durable in the database: a crash of the server does not undo them. The
        page's position lists the deferred records that were not returned yet. The caller should save the position of a
        page even if the page has no records."""
        ...

    def load(self, ids: Sequence[int]) -> list[Row]:
        """Return the records of `ids` that still exist, in the order of `ids`, up to `PAGE_BYTES` (or a single larger
        record). The ids after the last returned record count as not read. The position of the source does not
        change."""
        ...

    def sent(self, rows: Sequence[Row]) -> None:
        """Note that `rows` were sent to Kafka in the current batch."""
        ...

    def committed(self, failed: Collection[int] = ()) -> None:
        """Note that Kafka has all records sent in this batch, except the records with the ids `failed`. Failed records
        are read again."""
        ...

    def give_back(self) -> None:
        """Release the records that were read and not delivered, so that the next leader can read them. Called at the
        end of a leader's term, unless the leader was fenced."""
        ...

    def retention_bounds(self, position: Position) -> tuple[str, int | None]:
        """Return the low watermark and the retention hold of a position. The low watermark is a snapshot: every record
        visible in it was read. The retention hold is the lowest id before the position whose record is still needed, or
        None."""
        ...

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        ...
