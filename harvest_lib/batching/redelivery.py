"""Redelivery of parked records that an operator retried. Precondition: the source has already passed these records.

While any records are parked, they are polled for due records about once a second. Each poll takes a run of due records.
The barrier defers the records of the run that cannot be sent at once, as if the source had just returned them. The next
run is taken when all records of this run are sent. The caller ensures the precondition: a source that has not passed a
parked record would return the record a second time.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from harvest_lib.batching.barrier import Barrier
from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parking import BatchParking
from harvest_lib.batching.paused_records import PausedRecords
from harvest_lib.clock import boot_seconds
from harvest_lib.delivery.topic_troubles import Troubles
from harvest_lib.record import ID, TOPIC, Row
from harvest_lib.source import BatchSource

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Interval between polls of the parked records for retry requests."""
_LOOKING_SHARE = 0.1
"""Largest share of the time that polls may take."""
_SHOWN = 10


class RedeliveryBatch(NamedTuple):
    """A batch to redeliver. `rows` are sent now. `ids` are released after the commit: the ids of `rows`, of deferred
    rows, and of deleted rows."""

    rows: list[Row]
    ids: list[int]


class Redelivery:
    """Redelivery of parked records during a term. `size` bounds its batches; the caller reports their outcomes to
    `size`."""

    def __init__(
        self,
        source: BatchSource,
        parking: BatchParking | MarkedParking,
        troubles: Troubles,
        paused: PausedRecords,
        size: BatchSize,
    ) -> None:
        self.size = size
        self._source = source
        self._parking = parking
        self._troubles = troubles
        self._paused = paused
        self._look_at = self._ask_at = 0.0
        self._freed: set[int] = set()  # ids of the rows of the last run that the barrier deferred
        self._was_next = False

    def is_next(self, *, caught_up: bool) -> bool:
        """Return True if the next batch is a redelivery. At most every second batch is a redelivery, and only after the
        source has caught up."""
        self._was_next = not self._was_next and caught_up and self.may_look
        return self._was_next

    @property
    def may_look(self) -> bool:
        """Return True if records are parked and the next poll for retry requests is due."""
        return not self._parking.is_empty and boot_seconds() >= self._look_at

    def next(self, barrier: Barrier) -> RedeliveryBatch | None:
        """Return the next batch to redeliver, or None. Records that still cannot be sent stay parked. Raises
        RecordError under `stop`."""
        began = boot_seconds()
        if not self._freed.isdisjoint(barrier.deferred_ids):
            return None
        asks, paused = began >= self._ask_at, self._troubles.paused
        # Once a second records of paused topics are due too: perhaps no other record names their topics.
        due = self._parking.due(min(self.size.records, self.size.page), frozenset() if asks else paused)
        now = boot_seconds()
        if not due:
            self._look_at = now + max(_LOOK_SECONDS, (now - began) / _LOOKING_SHARE)
            return None
        if asks:
            self._parking.forget_topics()
            self._ask_at = now + _LOOK_SECONDS
        rows = self._source.load(due)
        looked_for = due if not rows else due[: due.index(rows[-1][ID]) + 1]
        self.size.measured(rows, len(due))
        gone = sorted(set(looked_for).difference(row[ID] for row in rows))
        found = self._parking.filter_retried(rows)
        sendable = self._filter_paused(found)
        if not sendable and not gone and len(found) == len(rows):
            self._look_at = now if asks and paused else now + _LOOK_SECONDS  # sendable records may be behind them
            return None
        isolated = self._parking.oversized(sendable, self.size.largest)
        place = next((place for place, row in enumerate(sendable) if row[ID] in isolated), len(sendable))
        run = sendable[: place or 1]
        passing = list(barrier.filter_retried(run))
        self._freed = {row[ID] for row in run}.difference(row[ID] for row in passing)
        barrier.isolated.update(isolated & self._freed)
        if gone:
            _log.warning("records_gone", extra={"ids": gone[:_SHOWN], "count": len(gone)})
        return RedeliveryBatch(passing, [*gone, *(row[ID] for row in run)])

    def _filter_paused(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that need not wait for a paused topic. If all rows have to wait, return the first row alone
        if a probe of its topic is due, and no row if no probe is due."""
        sendable = [row for row in rows if not self._paused.defers(row)]
        if sendable or not rows:
            return sendable
        first = rows[0]
        return [first] if self._troubles.may_probe(first[TOPIC]) and not self._paused.has_paused(first) else []
