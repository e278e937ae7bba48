"""Histories of a correct system, drawn from a seed: with aborts, unknown outcomes, failed acknowledgements and crashes.

A model, not the product: writers that lock their keys, one leader after the other, a log that keeps what it was given,
a reader that lives through rebalances, and one that reads everything at the end.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypedDict

from infra.chaos.checker import Promise
from infra.chaos.history.events import (
    Acknowledge,
    Assign,
    CheckpointWrite,
    Effect,
    Event,
    EventType,
    FailoverLoss,
    FaultEvent,
    Isolation,
    MarkEvent,
    Poll,
    PolledRecord,
    Produce,
    Purge,
    ReadPosition,
    RecreatedTopic,
    Reset,
    Step,
    StoredCheckpoint,
    TermEvent,
    TransactionStep,
    Write,
    WrittenRecord,
)

TOPIC = "orders"
MOST_FAILOVERS = 3
"""Of one history: each gives back what was done, and there has to be an end."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of a history, and its faults. `trouble` is the probability of each thing that can go wrong, `recreated` that
    the topic is deleted and recreated after a batch, `failovers` that another server takes over then, which lacks the
    last purges."""

    promise: Promise
    writes: int = 12
    records_per_write: int = 3
    keys: int = 4
    partitions: int = 2
    page: int = 6
    trouble: float = 0.2
    recreated: float = 0.0
    failovers: float = 0.0


@dataclass
class Row:
    """A committed row of the outbox."""

    id: int
    record: WrittenRecord
    partition: int


@dataclass
class Place:
    """A record in the log. One that is not `committed` is for uncommitted readers only."""

    shown: PolledRecord
    committed: bool = True


class _Now(TypedDict):
    """The fields that all events have."""

    type: EventType
    process: str
    time: float
    wall: float


@dataclass
class Model:
    """The system. `run` yields its events in the order of time."""

    shape: Shape
    random: Random
    clock: float = 100.0
    backlog: deque[Row] = field(default_factory=deque)
    log: dict[int, list[Place]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    seqs: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    ids: int = 0
    written: int = 0
    terms: int = 0
    failovers: int = 0
    checkpoints: int = 0
    purges: list[tuple[list[Row], int]] = field(default_factory=list)
    """Deleted rows, and the number of checkpoints before."""
    leader: str = ""

    def run(self) -> Iterator[Event]:
        """Write, harvest and read until everything is written and harvested, then read everything."""
        self._make_topic()
        yield from self._takes_over()
        while self.written < self.shape.writes or self.backlog:
            if self.written < self.shape.writes:
                yield from self._writes()
            yield from self._harvests()
            yield from self._reads()
            if self.shape.recreated and self.random.random() < self.shape.recreated:
                yield from self._made_anew()
            if self.failovers < MOST_FAILOVERS and self.random.random() < self.shape.failovers:
                yield from self._fails_over()
        yield TermEvent(**self._now("ok", self.leader), leader_id=self.leader, shard=0, epoch=self.terms)
        readers: list[Isolation] = ["committed"] if self.shape.promise.transactional else ["committed", "uncommitted"]
        for isolation in readers:
            yield self._begins(f"final-{isolation}")
            for places in self.log.values():
                shown = tuple(p.shown for p in places if p.committed)
                yield Poll(**self._now("ok", f"final-{isolation}"), isolation=isolation, records=shown)

    def _make_topic(self) -> None:
        self.log = {partition: [] for partition in range(self.shape.partitions)}
        self.ends = dict.fromkeys(self.log, 0)
        self.read = dict.fromkeys(self.log, 0)

    def _made_anew(self) -> Iterator[Event]:
        """Delete the topic once all is read, but for what is written and harvested right then; and recreate it."""
        while self.backlog:
            yield from self._harvests()
            yield from self._reads()
        since = self.clock
        if self.written < self.shape.writes:
            yield from self._writes()
        yield from self._harvests()
        unread = [place.shown.event for number, places in self.log.items() for place in places[self.read[number] :]]
        yield RecreatedTopic(**self._now("ok", "admin"), topic=TOPIC, events=tuple(unread), since=since)
        self._make_topic()
        yield self._begins("consumer")

    def _fails_over(self) -> Iterator[Event]:
        """Have another server take over, to which the last purges and checkpoints did not come."""
        self.failovers += 1
        for _ in range(min(len(self.purges), self.random.randint(0, 3))):
            rows, self.checkpoints = self.purges.pop()
            self._put_back(rows)
        yield FailoverLoss(
            **self._now("ok", "postgres"),
            events=(),
            since=self.clock,
            backlog=tuple(row.record.event for row in self.backlog),
            checkpoints=(StoredCheckpoint("outbox", 0, 1, self.checkpoints),),
        )
        yield from self._takes_over()

    def _begins(self, reader: str) -> Event:
        """Have a reader begin with the topic that there is."""
        return Assign(
            **self._now("ok", reader), partitions=tuple(ReadPosition(TOPIC, number, 0) for number in self.log)
        )

    def _harvests(self) -> Iterator[Event]:
        return self._transaction() if self.shape.promise.transactional else self._batch()

    def _now(self, kind: EventType, process: str) -> _Now:
        self.clock += 0.001
        return {"type": kind, "process": process, "time": self.clock, "wall": 1e9 + self.clock}

    def _goes_wrong(self) -> bool:
        return self.random.random() < self.shape.trouble

    def _takes_over(self) -> Iterator[Event]:
        self.terms += 1
        self.leader = f"leader-{self.terms}"
        yield TermEvent(**self._now("invoke", self.leader), leader_id=self.leader, shard=0, epoch=self.terms)

    def _writes(self) -> Iterator[Event]:
        self.written += 1
        numbers = dict(self.seqs)
        keys = [
            self.random.randrange(self.shape.keys) for _ in range(self.random.randint(1, self.shape.records_per_write))
        ]
        records = []
        for place, key in enumerate(keys):
            numbers[key] = numbers.get(key, 0) + 1
            event = f"event-{self.written}-{place}"
            records.append(WrittenRecord(event, TOPIC, f"key-{key}", numbers[key], f"hash-{event}"))
        transaction, written = f"transaction-{self.written}", tuple(records)
        yield Write(**self._now("invoke", "writer"), transaction=transaction, records=written)
        outcome: EventType | Literal["killed"] = "ok"
        if self._goes_wrong():
            outcome = self.random.choice(["fail", "info", "killed"])
        if outcome == "ok" or (outcome != "fail" and self.random.random() < 0.5):
            self.seqs = numbers
            for key, record in zip(keys, records, strict=True):
                self.ids += self.random.randint(1, 2)
                self.backlog.append(Row(self.ids, record, key % self.shape.partitions))
        if outcome != "killed":
            yield Write(**self._now(outcome, "writer"), transaction=transaction, records=written)

    def _page(self, *, one_per_key: bool) -> list[Row]:
        """Take the head of the backlog; the taker puts back the rows that are not done."""
        rows, later, keys = list[Row](), deque[Row](), set[str | None]()
        while self.backlog and len(rows) < self.shape.page:
            row = self.backlog.popleft()
            if one_per_key and row.record.key in keys:
                later.append(row)
            else:
                rows.append(row)
            keys.add(row.record.key)
        self.backlog.extendleft(reversed(later))
        return rows

    def _put_back(self, rows: list[Row]) -> None:
        self.backlog = deque(sorted([*rows, *self.backlog], key=lambda row: row.id))

    def _append(self, row: Row, *, committed: bool = True) -> Place:
        offset = self.ends[row.partition]
        self.ends[row.partition] += 1
        record = row.record
        shown = PolledRecord(
            TOPIC, row.partition, offset, record.event, row.id, record.key, record.seq, record.hash, self.leader
        )
        place = Place(shown, committed)
        self.log[row.partition].append(place)
        return place

    def _produces(self, rows: list[Row]) -> Iterator[Event]:
        for row in rows:
            yield Produce(**self._now("invoke", self.leader), leader_id=self.leader, id=row.id, event=row.record.event)

    def _acknowledges(self, row: Row, place: Place) -> Event:
        return Acknowledge(
            **self._now("ok", self.leader),
            leader_id=self.leader,
            id=row.id,
            topic=TOPIC,
            partition=row.partition,
            offset=place.shown.offset,
        )

    def _batch(self) -> Iterator[Event]:
        """At least once: mark, send, purge what was acknowledged, reset what failed; or die in the middle of it."""
        rows = self._page(one_per_key=self.shape.promise.barrier)
        ids = tuple(row.id for row in rows)
        yield MarkEvent(**self._now("ok", self.leader), leader_id=self.leader, ids=ids)
        yield from self._produces(rows)
        dies, done, failed = self._goes_wrong(), list[Row](), list[Row]()
        broken, ended = set[str | int | None](), set[int]()
        for row in rows:
            lane = row.record.key if self.shape.promise.barrier else row.partition
            if lane not in broken and not self._goes_wrong():
                place = self._append(row)
                if not dies or self.random.random() < 0.5:
                    yield self._acknowledges(row, place)
                    done.append(row)
                    continue
            elif self.random.random() < 0.5 and row.partition not in ended:
                self._append(row)
            else:
                ended.add(row.partition)
            broken.add(lane)
            failed.append(row)
            if not dies:
                failure: EventType = self.random.choice(["fail", "info"])
                yield Acknowledge(**self._now(failure, self.leader), leader_id=self.leader, id=row.id, reason="timeout")
        if done and not (dies and self.random.random() < 0.5):
            gone = tuple(row.id for row in done)
            yield Purge(**self._now("ok", self.leader), leader_id=self.leader, ids=gone, count=len(gone))
            self.purges.append((done, self.checkpoints))
            done = []
        if dies:
            yield FaultEvent(**self._now("info", "nemesis"), fault="kill", step="begin")
            self._put_back([*done, *failed])
            yield from self._takes_over()
        elif failed:
            self._put_back([*done, *failed])
            yield Reset(**self._now("ok", self.leader), leader_id=self.leader, count=len(failed))

    def _transaction(self) -> Iterator[Event]:
        """Send a page and its checkpoint in one transaction: committed, aborted, or nobody of this term knows."""
        rows = self._page(one_per_key=False)
        if not rows:
            return
        yield self._step("invoke", "begin")
        yield self._step("ok", "begin")
        yield from self._produces(rows)
        places = [self._append(row, committed=False) for row in rows]
        for row, place in zip(rows, places, strict=True):
            yield self._acknowledges(row, place)
        outcome: Literal["ok", "abort", "info", "killed"] = "ok"
        if self._goes_wrong():
            outcome = self.random.choice(["abort", "info", "killed"])
        committed = outcome == "ok" or (outcome == "info" and self.random.random() < 0.5)
        if outcome in {"ok", "info"}:
            yield self._step("invoke", "commit")
        elif outcome == "abort":
            yield self._step("invoke", "abort")
        for partition in {row.partition for row in rows}:
            self.ends[partition] += 1  # the marker
        for place in places:
            place.committed = committed
        if not committed:
            self._put_back(rows)
        if outcome in {"ok", "info"}:
            yield self._step(outcome, "commit")
        elif outcome == "abort":
            yield self._step("ok", "abort")
        if outcome in {"info", "killed"}:
            yield from self._takes_over()
        if committed:
            ids = tuple(row.id for row in rows)
            yield Purge(**self._now("ok", self.leader), leader_id=self.leader, ids=ids, count=len(ids))
            self.purges.append((rows, self.checkpoints))
            self.checkpoints += 1
            yield CheckpointWrite(
                **self._now("ok", self.leader),
                subscription="outbox",
                shard=0,
                generation=1,
                number=self.checkpoints,
                position={"id": ids[-1]},
                leader_id=self.leader,
            )

    def _step(self, kind: EventType, step: Step) -> Event:
        return TransactionStep(
            **self._now(kind, self.leader), transactional_id="outbox-0", leader_id=self.leader, step=step
        )

    def _reads(self) -> Iterator[Event]:
        """The live reader goes on, applies what it has not applied; after a rebalance it reads some of it again."""
        if self._goes_wrong():
            self.read = {partition: max(0, place - self.random.randrange(9)) for partition, place in self.read.items()}
            positions = tuple(ReadPosition(TOPIC, partition, self._offset(partition)) for partition in self.read)
            yield Assign(**self._now("ok", "consumer"), partitions=positions)
        shown = []
        for partition, places in self.log.items():
            start = self.read[partition]
            shown += [place.shown for place in places[start:] if place.committed] if start < len(places) else []
            self.read[partition] = len(places)
        yield Poll(**self._now("ok", "consumer"), isolation="committed", records=tuple(shown))
        for record in shown:
            if record.event not in self.applied:
                self.applied.add(record.event)
                yield Effect(**self._now("ok", "consumer"), event=record.event, consumer="totals")

    def _offset(self, partition: int) -> int:
        places, place = self.log[partition], self.read[partition]
        return places[place].shown.offset if place < len(places) else self.ends[partition]


def history(seed: int, shape: Shape) -> Iterator[Event]:
    """Return the history of a seed."""
    return Model(shape, Random(seed)).run()
