"""State of each record: its write, its way to Kafka, and the places where it was seen there.

Only the parts of an event that a finding would show are kept, so that memory is bounded by the number of records.
"""

from collections.abc import Iterator
from typing import NamedTuple

from infra.chaos.history.events import (
    Acknowledge,
    Effect,
    Event,
    EventType,
    Isolation,
    Poll,
    PolledRecord,
    Produce,
    Purge,
    Write,
    WrittenRecord,
)

Partition = tuple[str, int]
"""A topic and the number of its partition."""

SPAN = 1 << 50
"""More than a partition has offsets: this is the distance from the places of a topic to its places once recreated."""


def offset_at(place: int) -> int:
    """Return the offset of a place; -1 before the first."""
    return (place + 1) % SPAN - 1


class Stamp(NamedTuple):
    """Type, process and times of an event: a stamp for all its records."""

    type: EventType
    process: str
    time: float
    wall: float


def stamp(event: Event) -> Stamp:
    return Stamp(event.type, event.process, event.time, event.wall)


class WriteLifecycle:
    """A writer's transaction. Its outcome is `invoke`, `info` (both: unknown), `ok` or `fail`."""

    __slots__ = ("first", "last", "seen", "transaction")

    def __init__(self, transaction: str, first: Stamp) -> None:
        self.transaction = transaction
        self.first = first
        self.last = first
        self.seen = False
        """True if one of its records was seen: then it has committed, whatever its writer knows."""

    @property
    def committed(self) -> bool:
        """True if it certainly has committed."""
        return self.last.type == "ok" or (self.last.type != "fail" and self.seen)


class Observation:
    """A place in the log, and the record there. `place` is the offset plus `SPAN` for each recreation of the topic."""

    __slots__ = ("committed", "id", "leader_id", "odd", "partition", "place", "record", "stamp")

    def __init__(
        self, record: "RecordLifecycle", partition: Partition, place: int, shown: PolledRecord, by: Stamp
    ) -> None:
        self.record = record
        self.partition = partition
        self.place = place
        self.id = shown.id
        self.leader_id = shown.leader_id
        self.stamp = by
        self.committed = False
        """True if a committed reader has seen it."""
        self.odd: PolledRecord | None = None
        """The record as shown, where it differs from the record as written."""

    def __str__(self) -> str:
        topic, partition = self.partition
        after = f" after deletion {self.recreations}" if self.recreations else ""
        return f"{topic}/{partition}@{self.offset}{after}"

    @property
    def offset(self) -> int:
        """Its offset, as clients call it."""
        return offset_at(self.place)

    @property
    def recreations(self) -> int:
        """Number of recreations of its topic by then."""
        return self.place // SPAN

    def shown(self) -> PolledRecord:
        """Return the record as the first reader got it."""
        topic, partition = self.partition
        record = self.record
        return self.odd or PolledRecord(
            topic,
            partition,
            self.offset,
            record.event,
            self.id,
            record.key,
            record.seq,
            record.hash,
            self.leader_id,
        )

    def poll(self, by: Stamp | None = None) -> Poll:
        """Return the poll that showed it, of the first reader if of no other, reduced to this record."""
        return make_poll(by or self.stamp, "committed" if self.committed else "uncommitted", self.shown())


class RecordLifecycle:
    """A record, by the UUID of its event."""

    __slots__ = (
        "acknowledged",
        "effects",
        "event",
        "forgotten",
        "gone",
        "hash",
        "index",
        "key",
        "latest",
        "observations",
        "parked",
        "produced",
        "purged",
        "seq",
        "topic",
        "write",
    )

    def __init__(self, event: str) -> None:
        self.event = event
        self.topic = ""
        self.key: str | None = None
        self.seq = 0
        self.hash = ""
        self.write: WriteLifecycle | None = None
        self.produced: tuple[Produce, ...] = ()
        self.acknowledged: tuple[Acknowledge, ...] = ()
        self.purged: Purge | None = None
        self.observations: tuple[Observation, ...] = ()
        self.effects: tuple[Effect, ...] = ()
        self.forgotten = False
        """True if a server took over that lacks it: it may have been seen or not, and has no place in an order."""
        self.gone = False
        """True if it was lost with a deleted topic: it need not be seen."""
        self.parked = False
        """True if it is parked, or was dropped: it need not be seen."""
        self.index = -1
        """Its place among the first occurrences of its key."""
        self.latest: Observation | None = None
        """Its last copy so far, as the log is gone through from its beginning."""

    def __str__(self) -> str:
        return f"{self.event} ({self.topic}, key {self.key}, seq {self.seq})"

    def describe(self, shown: WrittenRecord | PolledRecord) -> None:
        """Take over its description by a writer, or by the first reader."""
        self.topic, self.key, self.seq, self.hash = shown.topic, shown.key, shown.seq, shown.hash

    def fits(self, shown: WrittenRecord | PolledRecord) -> bool:
        """Return whether the same was reported of it before."""
        return self.hash == shown.hash and self.seq == shown.seq and self.key == shown.key and self.topic == shown.topic

    def produced_by(self, leader_id: str | None) -> list[Produce]:
        """Return when a leader handed it to its client."""
        return [produce for produce in self.produced if produce.leader_id == leader_id]

    def writes(self) -> Iterator[Write]:
        """Yield the beginning and the end of its write, reduced to this record."""
        write = self.write
        if write is not None:
            written = WrittenRecord(self.event, self.topic, self.key, self.seq, self.hash)
            for at in (write.first, write.last) if write.last is not write.first else (write.first,):
                yield Write(**at._asdict(), transaction=write.transaction, records=(written,))


class RecordIndex:
    """All records, by event, and by the outbox id under which they were last produced."""

    def __init__(self) -> None:
        self.by_event: dict[str, RecordLifecycle] = {}
        self.by_id: dict[int, RecordLifecycle] = {}

    def get(self, event: str) -> RecordLifecycle:
        """Return the record of an event, which may be new."""
        record = self.by_event.get(event)
        if record is None:
            record = self.by_event[event] = RecordLifecycle(event)
        return record


def make_poll(by: Stamp, isolation: Isolation, *records: PolledRecord) -> Poll:
    return Poll(**by._asdict(), isolation=isolation, records=records)
