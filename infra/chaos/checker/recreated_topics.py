"""Topics that were deleted and recreated: their offsets begin again, and unread records are gone.

In a topic's log the records after a recreation stand behind all earlier records. A reader reads the topic that it was
assigned; an acknowledgement belongs to the topic that existed when it came.

A record went with the old topic, and need not be seen, only if all of this holds: the event of the deletion names it;
its write was not answered by when all was read (`since`); Kafka acknowledged it there, in its partition behind all
records ever seen of that; and, transactional, its leader's next request was a commit.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import attrgetter

from infra.chaos.checker.promise import Promise
from infra.chaos.checker.records import SPAN, Observation, Partition, RecordIndex, RecordLifecycle
from infra.chaos.checker.transactions import Transactions
from infra.chaos.history.events import Acknowledge, Assign, RecreatedTopic

_Ordered = Callable[[Partition], list[Observation]]


class RecreatedTopics:
    """Knows when topics were recreated, and which topic each reader reads; then marks the records lost with the old."""

    def __init__(self, promise: Promise, records: RecordIndex, transactions: Transactions) -> None:
        self._promise = promise
        self._records = records
        self._transactions = transactions
        self._events: list[RecreatedTopic] = []
        self._times: dict[str, list[float]] = defaultdict(list)
        self._read: dict[str, dict[Partition, int]] = defaultdict(dict)

    def recreate(self, event: RecreatedTopic) -> None:
        if event.type == "ok":
            self._events.append(event)
            self._times[event.topic].append(event.time)

    def assign(self, event: Assign) -> None:
        """Take in that a reader is in the topics that there are now."""
        if not self._times or event.type not in {"ok", "info"}:
            return
        for topic, partition, _ in event.partitions:
            self._read[event.process][topic, partition] = self.begins(topic, event.time)

    def read_by(self, process: str) -> Mapping[Partition, int]:
        """Return where in their logs the recreated topics begin that a process reads."""
        return self._read.get(process, {}) if self._times else {}

    def begins(self, topic: str, time: float) -> int:
        """Return where in its log the topic begins that was there at a time."""
        times = self._times.get(topic)
        return SPAN * bisect_right(times, time) if times else 0

    def finish(self, ordered: _Ordered) -> None:
        """Mark the records that went with topics. `ordered` returns a partition's observations by place."""
        for event in self._events:
            for name in event.events:
                record = self._records.get(name)
                if not self._was_read(record, event) and any(
                    self._went(acknowledged, event, ordered) for acknowledged in record.acknowledged
                ):
                    record.gone = True

    def _was_read(self, record: RecordLifecycle, event: RecreatedTopic) -> bool:
        write = record.write
        return write is not None and write.last.type == "ok" and write.last.time <= event.since

    def _went(self, acknowledged: Acknowledge, event: RecreatedTopic, ordered: _Ordered) -> bool:
        """Return whether an acknowledgement proves that a record was in the deleted topic, in its unread part."""
        topic, partition, offset = acknowledged.topic, acknowledged.partition, acknowledged.offset
        ends = self.begins(event.topic, event.time)
        begins = self.begins(event.topic, acknowledged.time)
        if topic != event.topic or partition is None or offset is None or begins + SPAN != ends:
            return False
        if self._promise.transactional and not self._transactions.ends_in_commit(acknowledged):
            return False
        seen = ordered((topic, partition))
        before = bisect_left(seen, ends, key=attrgetter("place"))
        return before == 0 or seen[before - 1].place < begins + offset
