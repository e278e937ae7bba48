"""The order in which each consumer reads: it must neither go back nor skip records in the log.

Between two polls the anomalies are nonmonotonic-poll and poll-skip; within a poll they are int-nonmonotonic-poll and
int-poll-skip. An assignment or a seek resets the position in its partitions. A committed reader may skip a record that
no committed reader has ever seen.
"""

from bisect import bisect_left, bisect_right
from operator import attrgetter

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.log import ObservedLog
from infra.chaos.checker.records import Partition, Stamp, make_poll, offset_at, stamp
from infra.chaos.checker.recreated_topics import RecreatedTopics
from infra.chaos.history.events import Assign, Poll, PolledRecord

_Place = tuple[int, Stamp]


class Polls:
    """Follows the reads of each process in each of its partitions."""

    def __init__(self, log: ObservedLog, recreated_topics: RecreatedTopics, findings: Findings) -> None:
        self._log = log
        self._recreated_topics = recreated_topics
        self._findings = findings
        self._read: dict[str, dict[Partition, _Place]] = {}
        self._gaps: list[tuple[Partition, bool, _Place, _Place]] = []

    def assign(self, event: Assign) -> None:
        """Reset the position in these partitions: to the event's offset, or to unknown if the offset is negative."""
        if event.type not in {"ok", "info"}:
            return
        read, begins = self._read.setdefault(event.process, {}), self._recreated_topics.read_by(event.process)
        at = stamp(event)
        for topic, partition, offset in event.partitions:
            if offset >= 0:
                read[topic, partition] = (begins.get((topic, partition), 0) + offset - 1, at)
            else:
                read.pop((topic, partition), None)

    def poll(self, event: Poll) -> None:
        """Process a poll. `ObservedLog.poll` must have processed it before."""
        read, begins = self._read.setdefault(event.process, {}), self._recreated_topics.read_by(event.process)
        by = stamp(event)
        for shown in event.records:
            partition = shown[:2]
            place = shown.offset + begins.get(partition, 0)
            before = read.get(partition)
            if before is not None and place != before[0] + 1:
                if place > before[0]:
                    self._gaps.append((partition, event.isolation == "committed", before, (place, by)))
                else:
                    self._back(event, shown, before, by)
            read[partition] = (place, by)

    def _back(self, event: Poll, shown: PolledRecord, before: _Place, by: Stamp) -> None:
        place, at = before
        earlier, read = self._log.at(shown[:2], place), offset_at(place)
        self._findings.add(
            "int-nonmonotonic-poll" if at is by else "nonmonotonic-poll",
            f"{event.process} read {shown.topic}/{shown.partition}@{shown.offset} after it had read to {read}",
            (*([earlier.poll(at)] if earlier else []), make_poll(by, event.isolation, shown)),
        )

    def finish(self) -> None:
        """Report each gap between two reads of a consumer in which the log has records."""
        place = attrgetter("place")
        for partition, committed, (before, left), (after, by) in self._gaps:
            places = self._log.ordered(partition, committed=committed)
            skipped = places[bisect_right(places, before, key=place) : bisect_left(places, after, key=place)]
            if skipped:
                ends = [(self._log.at(partition, before), left), (self._log.at(partition, after), by)]
                self._findings.add(
                    "int-poll-skip" if left is by else "poll-skip",
                    f"{by.process} went in {partition[0]}/{partition[1]} from {offset_at(before)} to "
                    f"{offset_at(after)} and passed over {len(skipped)} records, the first at {skipped[0].offset}",
                    (*(end.poll(at) for end, at in ends if end is not None), skipped[0].poll()),
                )
