"""State of each record: its write, its delivery to Kafka, and the places in the log where it was seen.

Only the parts of an event that a finding would show are stored, so that memory is bounded by the number of records.
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
"""Each recreation of a topic adds this number to the places in the new topic. It is greater than any offset."""


def offset_at(place: int) -> int:
    """Return the offset of a place; -1 for the place before the first offset of a topic."""
    return (place + 1) % SPAN - 1


class Stamp(NamedTuple):
    """Type, process and times of an event, shared by the event's records."""

    type: EventType
    process: str
    time: float
    wall: float


def stamp(event: Event) -> Stamp:
    return Stamp(event.type, event.process, event.time, event.wall)


class WriteLifecycle:
    """A writer's transaction. `last.type` is its outcome: `ok`, `fail`, or unknown (`invoke` and `info`)."""

    __slots__ = ("first", "last", "seen", "transaction")

    def __init__(self, transaction: str, first: Stamp) -> None:
        self.transaction = transaction
        self.first = first
        self.last = first
        self.seen = False
        """True if a record of the transaction was seen. This proves the commit even if the writer does not know it."""

    @property
    def committed(self) -> bool:
        """True if the transaction has certainly committed."""
        return self.last.type == "ok" or (self.last.type != "fail" and self.seen)


class Observation:
    """A record at a position in the log. `place` is the offset plus `SPAN` for each earlier recreation of the topic."""

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
        """True if a committed reader has seen this place."""
        self.odd: PolledRecord | None = None
        """The record as it was read; None if it equals the record as it was written."""

    def __str__(self) -> str:
        topic, partition = self.partition
        after = f" after deletion {self.recreations}" if self.recreations else ""
        return f"{topic}/{partition}@{self.offset}{after}"

    @property
    def offset(self) -> int:
        """The offset as clients see it."""
        return offset_at(self.place)

    @property
    def recreations(self) -> int:
        """Number of recreations of the topic before this record."""
        return self.place // SPAN

    def shown(self) -> PolledRecord:
        """Return the record as its first reader received it."""
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
        """Return a poll with this record alone: the poll `by`, by default the poll of the first reader."""
        return make_poll(by or self.stamp, "committed" if self.committed else "uncommitted", self.shown())


class RecordLifecycle:
    """All that the history has about a record, which its event id (a UUID) identifies."""

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
        """True if a server without the record took over. The record may then be seen or not, and in any order."""
        self.gone = False
        """True if the record was lost with a deleted topic, so that it need not be seen."""
        self.parked = False
        """True if the record is parked, held or dropped, so that it need not be seen."""
        self.index = -1
        """Index of the record among the first occurrences of its key; -1 before `Sequences` has reached it."""
        self.latest: Observation | None = None
        """The last occurrence that the pass of `Sequences` over the log has found so far."""

    def __str__(self) -> str:
        return f"{self.event} ({self.topic}, key {self.key}, seq {self.seq})"

    def describe(self, shown: WrittenRecord | PolledRecord) -> None:
        """Set topic, key, `seq` and hash from the record as its writer or its first reader reported it."""
        self.topic, self.key, self.seq, self.hash = shown.topic, shown.key, shown.seq, shown.hash

    def fits(self, shown: WrittenRecord | PolledRecord) -> bool:
        """Return True if `shown` has the topic, key, `seq` and hash that `describe` has set."""
        return self.hash == shown.hash and self.seq == shown.seq and self.key == shown.key and self.topic == shown.topic

    def produced_by(self, leader_id: str | None) -> list[Produce]:
        """Return the events in which the leader handed the record to its client."""
        return [produce for produce in self.produced if produce.leader_id == leader_id]

    def writes(self) -> Iterator[Write]:
        """Yield the first and the last event of the record's write, reduced to this record."""
        write = self.write
        if write is not None:
            written = WrittenRecord(self.event, self.topic, self.key, self.seq, self.hash)
            for at in (write.first, write.last) if write.last is not write.first else (write.first,):
                yield Write(**at._asdict(), transaction=write.transaction, records=(written,))


class RecordIndex:
    """All records by event id, and the produced records by their last outbox id."""

    def __init__(self) -> None:
        self.by_event: dict[str, RecordLifecycle] = {}
        self.by_id: dict[int, RecordLifecycle] = {}

    def get(self, event: str) -> RecordLifecycle:
        """Return the record of an event id. A new event id gets a new record."""
        record = self.by_event.get(event)
        if record is None:
            record = self.by_event[event] = RecordLifecycle(event)
        return record


def make_poll(by: Stamp, isolation: Isolation, *records: PolledRecord) -> Poll:
    return Poll(**by._asdict(), isolation=isolation, records=records)
