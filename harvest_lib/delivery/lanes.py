"""Several deliveries side by side, each with a producer of its own: lanes.

Promises: the records of a key take one lane, by the hash of the key, so what a lane promises per key or partition all
of them together do. A lane that is full or halted holds up no other.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from harvest_lib.delivery.at_least_once import AtLeastOnce
from harvest_lib.delivery.protocol import Reports
from harvest_lib.record.rows import RowQueue


class Lanes:
    """`Delivery` over lanes, which are all of one kind."""

    def __init__(self, lanes: Sequence[AtLeastOnce]) -> None:
        self._lanes = lanes
        self._turn = 0

    def begin(self, leader_id: UUID) -> None:
        for lane in self._lanes:
            lane.begin(leader_id)

    @property
    def takes(self) -> bool:
        return any(lane.takes for lane in self._lanes)

    def send(self, rows: RowQueue, may_send: Callable[[], bool]) -> None:
        shares = [RowQueue() for _ in self._lanes]
        for row in rows.rows:
            shares[hash(row[2]) % len(shares)].single.append(row)
        rows.single.clear()
        for lane, share in zip(self._lanes, shares, strict=True):
            lane.send(share, may_send)
            rows.single.extend(share.rows)

    def poll(self, timeout_seconds: float) -> Reports:
        reports = Reports()
        if not any(lane.is_busy for lane in self._lanes):  # one at a time will do
            self._turn = (self._turn + 1) % len(self._lanes)
            return self._lanes[self._turn].poll(timeout_seconds)
        for lane in self._lanes:
            _merge(reports, lane.poll(0))
        if not reports.acknowledged and not reports.failed and timeout_seconds:
            # One can be waited for; the others are asked again at the next turn, a few milliseconds later.
            busiest = max(self._lanes, key=lambda lane: lane.outstanding)
            _merge(reports, busiest.poll(timeout_seconds))
        return reports

    def abandon(self) -> Reports:
        for lane in self._lanes:
            lane.purge()  # the last must not go on while the first is closed
        reports = Reports()
        for lane in self._lanes:
            _merge(reports, lane.abandon())
        return reports

    def close(self) -> None:
        self.abandon()


def _merge(all_reports: Reports, reports: Reports) -> None:
    all_reports.acknowledged.extend(reports.acknowledged)
    all_reports.failed.extend(reports.failed)
    all_reports.halted = all_reports.halted or reports.halted
