"""Histories written by hand: `Pen().write("a1 b1").poll("a1 b1")`. `a1` is the record with seq 1 of key a.

`a1!` is another event with the same key and seq.
"""

from infra.chaos.checker import Promise
from infra.chaos.history.events import (
    Acknowledge,
    Assign,
    CheckpointWrite,
    Effect,
    FailoverLoss,
    Park,
    Poll,
    PolledRecord,
    Produce,
    Purge,
    ReadPosition,
    RecreatedTopic,
    StoredCheckpoint,
    TermEvent,
    TransactionStep,
    Write,
    WrittenRecord,
)

TOPIC = "orders"
LEADER = "leader-1"
OTHER = "leader-2"

BARRIER = Promise(delivery="at_least_once")
PIPELINED = Promise(delivery="at_least_once", barrier=False)
TRANSACTIONAL = Promise(delivery="transactional")
PROMISES = (BARRIER, PIPELINED, TRANSACTIONAL)


def ids(name):
    """Return the outbox id of a record: any, if no two have the same."""
    return sum(ord(letter) * 1_000**place for place, letter in enumerate(name))


def written(name):
    """Return a record as its writer made it."""
    return WrittenRecord(f"event-{name}", TOPIC, name[0], int(name[1:].rstrip("!")), f"hash-{name}")


class Pen:
    """Writes events down, a millisecond after each other."""

    def __init__(self):
        self.events = []
        self._transactions = 0
        self._offset = 0
        self._waited_seconds = 0.0

    def wait(self, seconds):
        self._waited_seconds += seconds
        return self

    @property
    def _time(self):
        return len(self.events) / 1_000 + self._waited_seconds

    def _add(self, kind, *, type, process, **fields):  # noqa: A002 - the field's name
        time = self._time
        self.events.append(kind(type=type, process=process, time=time, wall=1e9 + time, **fields))
        return self

    def _writes(self, names, *types, transaction=None):
        self._transactions += 1
        records = tuple(map(written, names.split()))
        for kind in types:
            self._add(
                Write,
                type=kind,
                process="writer",
                transaction=transaction or f"transaction-{self._transactions}",
                records=records,
            )
        return self

    def write(self, names, **fields):
        return self._writes(names, "invoke", "ok", **fields)

    def fail(self, names):
        return self._writes(names, "invoke", "fail")

    def unknown(self, names):
        return self._writes(names, "invoke", "info")

    def killed(self, names):
        return self._writes(names, "invoke")

    def term(self, leader=LEADER, shard=0, epoch=None):
        return self._add(TermEvent, type="invoke", process=leader, leader_id=leader, shard=shard, epoch=epoch)

    def produce(self, names, leader=LEADER):
        for name in names.split():
            self._add(Produce, type="invoke", process=leader, leader_id=leader, id=ids(name), event=written(name).event)
        return self

    def acknowledge(self, name, offset=None, leader=LEADER, end="ok", process=None):
        place = {} if offset is None else {"topic": TOPIC, "partition": 0, "offset": offset}
        return self._add(Acknowledge, type=end, process=process or leader, leader_id=leader, id=ids(name), **place)

    def purge(self, names, leader=LEADER):
        rows = tuple(map(ids, names.split()))
        return self._add(Purge, type="ok", process=leader, leader_id=leader, ids=rows, count=len(rows))

    def transaction(self, step, leader=LEADER, end="ok", by="outbox-0"):
        for kind in ("invoke", end):
            self._add(TransactionStep, type=kind, process=leader, transactional_id=by, leader_id=leader, step=step)
        return self

    def harvest(self, names, leader=LEADER):
        """Send in a transaction and purge, as it should be; offsets go on where the last call ended."""
        self.transaction("begin", leader).produce(names, leader)
        for name in names.split():
            self.acknowledge(name, self._offset, leader)
            self._offset += 1
        return self.transaction("commit", leader).purge(names, leader)

    def poll(self, names, at=0, leader=LEADER, process="reader", isolation="committed", **changed):
        """Read records from consecutive offsets; `a1@X` is sent by X, `5:a1` stands at 5."""
        shown = []
        for offset, word in enumerate(names.split(), start=at):
            place, _, sent = word.rpartition(":")
            name, _, sender = sent.partition("@")
            record = written(name)
            shown.append(
                PolledRecord(
                    topic=TOPIC,
                    partition=0,
                    offset=int(place or offset),
                    event=record.event,
                    id=ids(name),
                    key=record.key,
                    seq=record.seq,
                    hash=record.hash,
                    leader_id=sender or leader,
                )._replace(**changed)
            )
        return self._add(Poll, type="ok", process=process, isolation=isolation, records=tuple(shown))

    def assign(self, offset, process="reader"):
        partitions = (ReadPosition(TOPIC, 0, offset),)
        return self._add(Assign, type="ok", process=process, partitions=partitions)

    def park(self, names, step="park"):
        events = tuple(written(name).event for name in names.split())
        return self._add(Park, type="ok", process="postgres", step=step, events=events)

    def failover(self, lost="", backlog="", checkpoints=()):
        """Have another server take over. `checkpoints` are generations and numbers, of a shard each."""
        events, left = (tuple(written(name).event for name in names.split()) for names in (lost, backlog))
        stored = tuple(StoredCheckpoint("outbox", shard, *each) for shard, each in enumerate(checkpoints))
        fields = {"events": events, "backlog": left, "checkpoints": stored, "since": self._time}
        return self._add(FailoverLoss, type="ok", process="postgres", **fields)

    def recreate(self, names="", since=0.0):
        """Delete the topic, with these records in it, and recreate it."""
        self._offset = 0
        events = tuple(written(name).event for name in names.split())
        return self._add(RecreatedTopic, type="ok", process="admin", topic=TOPIC, events=events, since=since)

    def effect(self, name, consumer="totals"):
        return self._add(Effect, type="ok", process="reader", event=written(name).event, consumer=consumer)

    def checkpoint(self, generation, number, shard=0, at=0, end="ok", process=LEADER):
        return self._add(
            CheckpointWrite,
            type=end,
            process=process,
            subscription="outbox",
            shard=shard,
            generation=generation,
            number=number,
            position={"id": at},
            leader_id=process,
        )
