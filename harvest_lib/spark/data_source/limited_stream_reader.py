"""The reader of a stream for Spark 4.2 and later, which limits micro-batches and names a target for `availableNow`."""

import time
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.spark.data_source.stream_reader import OutboxFollower

_REPORTED_SECONDS = 10.0
"""Shortest interval at which the newest offset is read while the query is behind. Spark asks for it at each poll."""


class LimitedStreamReader(OutboxFollower, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy checks against 4.1
    """The reader of a stream. With `availableNow`, it reads what was committed when the query started."""

    _target: dict[str, Any] | None = None
    _end: dict[str, Any] | None = None  # the offset that the last call returned
    _reported: tuple[float, dict[str, Any] | None] = (0.0, None)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, from the option `maxRecordsPerBatch`."""
        most = self.options.max_records
        return ReadMaxRows(most) if most is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the offset after all rows that are committed now."""
        self._target = self._now()

    def latestOffset(  # type: ignore[override]  # as above
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the offset at which the micro-batch after `start` ends: `start` if nothing was committed, or if all
        rows before the target were read.

        Raises PositionLost, OutboxTableError, CheckpointError or DatabaseError.
        """
        self._end = self._after(start, limit)
        return self._end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest offset for the progress of a query: the target if there is one, else the offset after all
        committed rows. None if it is unknown.

        Only a query that is behind costs statements of Postgres, at most every 10 seconds.
        """
        if self._target is not None:
            return self._target
        if self._end is None or "cur" not in self._end:
            return self._end
        if time.monotonic() - self._reported[0] >= _REPORTED_SECONDS:
            try:
                found = self._now()
            except DatabaseUnavailable:
                return None
            self._reported = time.monotonic(), found
        return self._reported[1]

    def _after(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._at is None and start == self._first:
            return start  # the first micro-batch of a stream that starts `now` is empty: it writes the offset down
        if self._target is not None and _is_read(start, self._target):
            return start
        return self._following(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None, self._target)


def _is_read(start: dict[str, Any], target: dict[str, Any]) -> bool:
    """Return True if `start` is after all rows before the target."""
    return "cur" not in start and Snapshot.parse(start["prev"]).covers(Snapshot.parse(target["prev"]))
