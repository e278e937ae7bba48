"""The log as polls have shown it: each place holds one record, the one that was written and acknowledged.

inconsistent-offsets: two readers, or a reader and who wrote or acknowledged the record, disagree on what is there.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

from harvest_lib.audit.checker.finding import Findings
from harvest_lib.audit.checker.records import Partition, Record, Records, Sighting, polled, stamp
from harvest_lib.audit.history import Event, Poll, PolledRecord


class Log:
    """All places that polls have shown. `first_committed` is told each when a committed reader sees it first."""

    def __init__(self, records: Records, findings: Findings, first_committed: Callable[[Sighting, Poll], None]) -> None:
        self._records = records
        self._findings = findings
        self._first_committed = first_committed
        self._partitions: dict[Partition, dict[int, Sighting]] = {}
        self._ordered: dict[tuple[Partition, bool], list[Sighting]] = {}

    def poll(self, event: Poll) -> None:
        """Take in what a consumer got."""
        by = stamp(event)
        committed = event.isolation == "committed"
        for shown in event.records:
            partition = shown[:2]
            places = self._partitions.get(partition)
            if places is None:
                places = self._partitions[partition] = {}
            sighting = places.get(shown.offset)
            if sighting is None:
                record = self._records.get(shown.event)
                sighting = places[shown.offset] = Sighting(record, partition, shown, by)
                if record.write is None and not record.sightings:
                    record.describe(shown)
                record.sightings += (sighting,)
                if not record.fits(shown):
                    sighting.odd = shown
                    self._add(
                        f"{sighting} does not hold what was written as {record.event}",
                        (*record.writes(), polled(by, event.isolation, shown)),
                    )
            elif not _same(sighting, shown):
                self._add(
                    f"{sighting} was shown as {sighting.record.event} and as {shown.event}, or with other contents",
                    (sighting.poll(), polled(by, event.isolation, shown)),
                )
            if committed and not sighting.committed:
                sighting.committed = True
                self._first_committed(sighting, event)

    def finish(self) -> None:
        """Compare with what Kafka acknowledged."""
        for record in self._records.by_event.values():
            for acknowledged in record.acknowledged:
                topic, partition, offset = acknowledged.topic, acknowledged.partition, acknowledged.offset
                if topic is None or partition is None or offset is None:
                    continue
                sighting = self._partitions.get((topic, partition), {}).get(offset)
                if sighting is not None and sighting.record is not record:
                    self._add(
                        f"{sighting} holds {sighting.record.event}, {record.event} was acknowledged there",
                        (acknowledged, sighting.poll()),
                    )

    def partitions(self) -> list[Partition]:
        """Return the partitions seen."""
        return sorted(self._partitions)

    def at(self, partition: Partition, offset: int) -> Sighting | None:
        """Return what is at a place, if that was seen."""
        return self._partitions.get(partition, {}).get(offset)

    def ordered(self, partition: Partition, *, committed: bool) -> list[Sighting]:
        """Return what is in a partition, of what committed readers have seen or of all, by offset.

        To be asked when the history has ended.
        """
        found = self._ordered.get((partition, committed))
        if found is None:
            places = self._partitions.get(partition, {}).values()
            found = sorted((s for s in places if s.committed or not committed), key=attrgetter("offset"))
            self._ordered[partition, committed] = found
        return found

    def _add(self, sentence: str, events: Iterable[Event]) -> None:
        self._findings.add("inconsistent-offsets", sentence, events)


def _same(sighting: Sighting, shown: PolledRecord) -> bool:
    if sighting.odd is not None:
        return sighting.odd == shown
    record: Record = sighting.record
    return (
        record.event == shown.event
        and record.fits(shown)
        and sighting.id == shown.id
        and sighting.leader_id == shown.leader_id
    )
