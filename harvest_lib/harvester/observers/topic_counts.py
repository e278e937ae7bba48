"""Counts the delivered records of each topic, for programs that call `Harvest.count_topics`.

Promises
- The sum over all topics is the number of delivered records: a record counts when its batch is committed, or when it is
  in Kafka although its batch has failed.
- A page with a single topic is counted as a whole. The key barrier counts each record, because a part of its batch may
  be delivered.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from harvest_lib.delivery import BatchCommitted, BatchOutcome
from harvest_lib.record import Row
from harvest_lib.record.rows import ids_of, records_by_topic, topics_of


class TopicCounts:
    """The numbers of delivered records by topic, over all terms. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, records: Mapping[str, int]) -> None:
        """Add numbers of delivered records."""
        with self._lock:
            self._counts.update(records)

    def read(self) -> Mapping[str, int]:
        """Return the number of delivered records of each topic that has got a record."""
        with self._lock:
            return dict(self._counts)


class TopicCounting:
    """`BatchObserver` that adds the records of a shard's batches to `counts`."""

    def __init__(self, counts: TopicCounts, *, one_per_key: bool) -> None:
        self._counts = counts
        self._one_per_key = one_per_key
        self._sent: Counter[str] = Counter()
        self._topic_of: dict[int, str] = {}  # by id, under the key barrier

    def handing_over(self, rows: Sequence[Row]) -> None:
        if self._one_per_key:
            self._topic_of.update(zip(ids_of(rows), topics_of(rows), strict=True))
        else:
            self._sent.update(records_by_topic(rows))

    def committed(self, outcome: BatchOutcome, _began: float) -> None:
        if isinstance(outcome, BatchCommitted):
            self._add()

    def delivered_except(self, failed: Collection[int]) -> None:
        for record_id in failed:
            self._topic_of.pop(record_id, None)
        self._add()

    def abandoned(self, *, repeats: bool) -> None:  # noqa: ARG002 - delivered records are counted already
        self._sent.clear()
        self._topic_of.clear()

    def _add(self) -> None:
        self._counts.add({**self._sent, **Counter(self._topic_of.values())})
        self._sent.clear()
        self._topic_of.clear()
