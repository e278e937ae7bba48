"""The log as polls have shown it. A place is a position in a partition's log, defined in `records.Observation`.

inconsistent-offsets: two readers disagree on the record at a place, or a reader disagrees with the record's writer or
with Kafka's acknowledgement.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.records import Observation, Partition, RecordIndex, RecordLifecycle, make_poll, stamp
from infra.chaos.checker.recreated_topics import RecreatedTopics
from infra.chaos.history.events import Event, Poll, PolledRecord


class ObservedLog:
    """All places that polls have shown. `first_committed` is called when a committed reader sees a place for the first
    time. `recreated_topics` maps offsets of a topic name to places, as a topic may have been deleted and recreated."""

    def __init__(
        self,
        records: RecordIndex,
        findings: Findings,
        recreated_topics: RecreatedTopics,
        first_committed: Callable[[Observation, Poll], None],
    ) -> None:
        self._records = records
        self._findings = findings
        self._recreated_topics = recreated_topics
        self._first_committed = first_committed
        self._partitions: dict[Partition, dict[int, Observation]] = {}
        self._ordered: dict[tuple[Partition, bool], list[Observation]] = {}

    def poll(self, event: Poll) -> None:
        """Process the records of a consumer's poll."""
        by = stamp(event)
        committed, begins = event.isolation == "committed", self._recreated_topics.read_by(event.process)
        for shown in event.records:
            partition = shown[:2]
            places = self._partitions.get(partition)
            if places is None:
                places = self._partitions[partition] = {}
            place = shown.offset + begins.get(partition, 0)
            observation = places.get(place)
            if observation is None:
                record = self._records.get(shown.event)
                observation = places[place] = Observation(record, partition, place, shown, by)
                if record.write is None and not record.observations:
                    record.describe(shown)
                record.observations += (observation,)
                if not record.fits(shown):
                    observation.odd = shown
                    self._add(
                        f"{observation} does not hold what was written as {record.event}",
                        (*record.writes(), make_poll(by, event.isolation, shown)),
                    )
            elif not _same(observation, shown):
                self._add(
                    f"{observation} was shown as {observation.record.event} and as {shown.event}, or with other "
                    "contents",
                    (observation.poll(), make_poll(by, event.isolation, shown)),
                )
            if committed and not observation.committed:
                observation.committed = True
                self._first_committed(observation, event)

    def finish(self) -> None:
        """Compare the log with Kafka's acknowledgements."""
        for record in self._records.by_event.values():
            for acknowledged in record.acknowledged:
                topic, partition, offset = acknowledged.topic, acknowledged.partition, acknowledged.offset
                if topic is None or partition is None or offset is None:
                    continue
                place = offset + self._recreated_topics.begins(topic, acknowledged.time)
                observation = self._partitions.get((topic, partition), {}).get(place)
                if observation is not None and observation.record is not record:
                    self._add(
                        f"{observation} holds {observation.record.event}, {record.event} was acknowledged there",
                        (acknowledged, observation.poll()),
                    )

    def partitions(self) -> list[Partition]:
        return sorted(self._partitions)

    def at(self, partition: Partition, place: int) -> Observation | None:
        """Return the observation at a place, None if no poll has shown it."""
        return self._partitions.get(partition, {}).get(place)

    def ordered(self, partition: Partition, *, committed: bool) -> list[Observation]:
        """Return a partition's observations, sorted by place. If `committed`, return only places that a committed
        reader has seen.

        Call it only at the end of the history, because the result is cached.
        """
        found = self._ordered.get((partition, committed))
        if found is None:
            places = self._partitions.get(partition, {}).values()
            found = sorted((s for s in places if s.committed or not committed), key=attrgetter("place"))
            self._ordered[partition, committed] = found
        return found

    def _add(self, sentence: str, events: Iterable[Event]) -> None:
        self._findings.add("inconsistent-offsets", sentence, events)


def _same(observation: Observation, shown: PolledRecord) -> bool:
    if observation.odd is not None:
        return observation.odd == shown
    record: RecordLifecycle = observation.record
    return (
        record.event == shown.event
        and record.fits(shown)
        and observation.id == shown.id
        and observation.leader_id == shown.leader_id
    )
