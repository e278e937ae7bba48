"""The readers of streams for Spark 4.2 and later, which limit micro-batches and name a target for `availableNow`."""

import time

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from harvest_lib.errors import DatabaseUnavailable, KafkaUnavailable
from harvest_lib.spark.data_source.follower import Follower, Offset
from harvest_lib.spark.data_source.stream_reader import OutboxFollower
from harvest_lib.spark.data_source.topic_reader import TopicFollower

_REPORTED_SECONDS = 10.0
"""Shortest interval at which the newest offset is read while the query is behind. Spark asks for it at each poll."""


class _Limited(Follower, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy checks against 4.1
    """The common parts. With `availableNow`, a reader reads what was committed when the query started."""

    _target: Offset | None = None
    _end: Offset | None = None  # the offset that the last call returned
    _reported: tuple[float, Offset | None] = (0.0, None)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, from the option `maxRecordsPerBatch`."""
        most = self.max_records
        return ReadMaxRows(most) if most is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the offset after all rows that are committed now."""
        self._target = self._now()

    def latestOffset(  # type: ignore[override]  # as above
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        """Return the offset at which the micro-batch after `start` ends: `start` if nothing was committed, or if all
        rows before the target were read. Raises the errors of the reader for Spark 4.1."""
        self._end = self._after(start, limit)
        return self._end

    def reportLatestOffset(self) -> Offset | None:
        """Return the newest offset for the progress of a query: the target if there is one, else the offset after all
        committed rows. None if it is unknown.

        Only a query that is behind costs requests, at most every 10 seconds.
        """
        if self._target is not None:
            return self._target
        if self._end is None or not self._is_behind(self._end):
            return self._end
        if time.monotonic() - self._reported[0] >= _REPORTED_SECONDS:
            try:
                found = self._now()
            except (DatabaseUnavailable, KafkaUnavailable):
                return None
            self._reported = time.monotonic(), found
        return self._reported[1]

    def _after(self, start: Offset, limit: ReadLimit) -> Offset:
        if self._at is None and start == self._first:
            return start  # the first micro-batch of a stream that starts `now` is empty: it writes the offset down
        if self._target is not None and self._is_read(start, self._target):
            return start
        return self._following(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None, self._target)


class LimitedStreamReader(_Limited, OutboxFollower):
    """The reader of a stream of an outbox."""


class LimitedTopicReader(_Limited, TopicFollower):
    """The reader of a stream of topics."""
