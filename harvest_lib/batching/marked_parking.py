"""Parking of a marked table: records that can never be sent are moved out of the outbox into the table of parked
records (`harvest_lib.outbox.parking_rules`).

Promises
- A parked record is out of the outbox, durably, before the page that it came with is sent; its id is in no position
  that is kept after that, so it is not purged if an operator puts it back.
- Under `hold_key` no record of a key is sent after a parked one of it. If an operator releases a key while more of it
  is being held, everything is marked again (`is_stale`), so that the records put back go first.
"""

from collections.abc import Mapping, Sequence, Set

from harvest_lib.config.limits import Policy
from harvest_lib.delivery import Topics
from harvest_lib.outbox.parking_rules import HeldKey, ParkingRules
from harvest_lib.record import TOPIC, Row
from harvest_lib.source import MarkPages, Position


class MarkedParking:
    """Parking of one term, in the place of `BatchParking`. Nothing is sent again from here: records that an operator
    puts back are marked."""

    is_empty = True
    lowest: int | None = None

    def __init__(self, policy: Policy, topics: Topics, pages: MarkPages) -> None:
        self._parking = ParkingRules(policy, self._refused)
        self._topics = topics
        self._pages = pages
        self._largest: int | None = None
        self._first: dict[
            HeldKey, int
        ] = {}  # of each key in its topic the lowest id parked since the source was opened
        self._holds = policy == "hold_key"
        self.is_full = False
        """Always False: records to park are written at once."""
        self.is_stale = False
        """True once a key was released whose records are held here: begin again."""

    def begin(self, retried: Sequence[int] = ()) -> bool:  # noqa: ARG002 - nothing is retried by its id
        self._parking.begin()
        self._first.clear()
        self.is_stale = False
        return True

    def filter(self, rows: Sequence[Row], largest: int | None = None) -> Sequence[Row]:
        self._largest = largest
        parked = self._pages.parked
        if self._first:
            parked = {**self._first, **parked}
        good = self._parking.filter(rows, parked)
        self.write()
        return good

    def passed(self, position: Position) -> Position:  # noqa: ARG002 - it may have records parked since
        return self._pages.position()

    def oversized(self, rows: Sequence[Row], largest: int) -> set[int]:
        return self._topics.oversized(rows, largest)

    def blame(self, row: Row, reason: str) -> None:
        self._topics.blame(row[TOPIC], reason)

    def park(self, row: Row, reason: str) -> bool:
        self._parking.refuse(row, reason)
        return self.write()

    def write(self) -> bool:
        if not self._parking.has_work:
            return True
        refused, behind = self._parking.work()
        released = self._pages.park(refused, behind)
        if self._holds:
            self._first.update(self._parking.refused_keys)
        self.is_stale = self._parking.done(refused, behind, released) or self.is_stale
        return True

    def due(self, limit: int, skipped: Set[str] = frozenset()) -> list[int]:  # noqa: ARG002 - as above
        return []

    def forget_topics(self) -> None:
        self._topics.forget()

    def sendable(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    def release(self, ids: Sequence[int]) -> bool:  # noqa: ARG002 - as above
        return True

    def _refused(self, rows: Sequence[Row]) -> Mapping[int, str]:
        return self._topics.refused(rows, self._largest)
