"""Failovers to a server that lacks the newest transactions.

Writes that it lacks count as never written. The positions and purges that it lacks are forgotten, so that their records
may be sent again.
"""

from harvest_lib.audit.checker.records import Observation, RecordIndex
from harvest_lib.audit.history.events import FailoverLoss

FAILED_OVER = "another server took over, which may not know"
"""The reason for a copy that was sent before a failover and again after it."""
_NOTED_SECONDS = 30.0
"""A sent record is purged, or passed by a checkpoint, at most this much later."""


class FailoverLosses:
    """Keeps the times of failovers, and marks the records that the new server lacks."""

    def __init__(self, records: RecordIndex) -> None:
        self._records = records
        self._times: list[tuple[float, float]] = []

    def failover(self, event: FailoverLoss) -> None:
        """Take in a failover."""
        self._times.append((event.since - _NOTED_SECONDS, event.time))
        for each in event.events:
            self._records.get(each).forgotten = True

    def between(self, copy: Observation, before: Observation) -> bool:
        """Return whether a failover lies between two sends of a record, to a server that may not know of the first."""
        first = [produce.time for produce in before.record.produced_by(before.leader_id)]
        again = [produce.time for produce in copy.record.produced_by(copy.leader_id)]
        return bool(first and again) and any(
            since <= first[-1] and first[0] < time <= again[-1] for since, time in self._times
        )
