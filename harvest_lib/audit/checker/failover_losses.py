"""Servers that took over and lack what was newest: what they lack counts as never written, and what had been noted
there about others, positions and purges, is forgotten, so that these may come again."""

from harvest_lib.audit.checker.records import Records, Sighting
from harvest_lib.audit.history import Regress

TOOK_OVER = "another server took over, which may not know"
"""Why a record came again that was sent before and after."""
_NOTED_SECONDS = 30.0
"""What is sent is noted in the database so much later at the latest: purged, or passed by a checkpoint."""


class Regressions:
    """Knows when a server took over, and marks the records that it lacks."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._times: list[tuple[float, float]] = []

    def regress(self, event: Regress) -> None:
        """Take in that a server took over."""
        self._times.append((event.since - _NOTED_SECONDS, event.time))
        for each in event.events:
            self._records.get(each).forgotten = True

    def between(self, copy: Sighting, before: Sighting) -> bool:
        """Return whether a server took over between the times when a record was sent, and may not know of the first."""
        first = [produce.time for produce in before.record.produced_by(before.leader_id)]
        again = [produce.time for produce in copy.record.produced_by(copy.leader_id)]
        return bool(first and again) and any(
            since <= first[-1] and first[0] < time <= again[-1] for since, time in self._times
        )
