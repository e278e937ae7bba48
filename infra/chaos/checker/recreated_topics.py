"""Topics that were deleted and recreated: offsets begin at 0 again, and unread records are lost.

In the log of a topic name, the records after a recreation follow all earlier records. A reader reads the topic that
existed when it was assigned. An acknowledgement belongs to the topic that existed at its time.

A record counts as lost with the old topic, and need not be seen, only if all of these conditions hold:
- The event of the recreation names the record.
- Its write was not confirmed by `since`. All records that were confirmed by then had been read.
- Kafka acknowledged the record in the old topic, at an offset above all offsets that were seen in the old partition.
- If the delivery is transactional, the leader's next request to end a transaction was a commit that did not fail.
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
    """Stores when topics were recreated and which topic each reader reads, and marks the records that were lost."""

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
        """Process an event: from now on a reader reads the current topics."""
        if not self._times or event.type not in {"ok", "info"}:
            return
        for topic, partition, _ in event.partitions:
            self._read[event.process][topic, partition] = self.begins(topic, event.time)

    def read_by(self, process: str) -> Mapping[Partition, int]:
        """Return the first place of the topic that a process reads, for each of its partitions; empty if no topic was
        recreated."""
        return self._read.get(process, {}) if self._times else {}

    def begins(self, topic: str, time: float) -> int:
        """Return the first place of the topic that existed under this name at `time`."""
        times = self._times.get(topic)
        return SPAN * bisect_right(times, time) if times else 0

    def finish(self, ordered: _Ordered) -> None:
        """Mark the records that were lost with old topics. `ordered` returns a partition's observations, sorted by
        place."""
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
        """Return True if an acknowledgement proves that a record was in the unread end of the deleted topic."""
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
