"""Events of a history: operations on the system, each with its process, time and outcome.

An operation is an `invoke` event and, if it was answered, a second event: `ok`, `fail` (it certainly had no effect) or
`info` (the result is unknown). All processes of a history run on the same machine, so their `time` values compare.
"""

import time as clocks
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from harvest_lib.clock import boot_seconds

EventType = Literal["invoke", "ok", "fail", "info"]
Step = Literal["begin", "commit", "abort"]
Isolation = Literal["committed", "uncommitted"]


class WrittenRecord(NamedTuple):
    """A record of the outbox as its writer made it. `seq` numbers the records of its key in commit order."""

    event: str
    topic: str
    key: str | None
    seq: int
    hash: str


class PolledRecord(NamedTuple):
    """A record as a consumer got it. `id` and `leader_id` come from the `harvest` header; None without the header."""

    topic: str
    partition: int
    offset: int
    event: str
    id: int | None
    key: str | None
    seq: int
    hash: str
    leader_id: str | None


class ReadPosition(NamedTuple):
    """The next offset that a consumer reads. A negative offset is a constant of librdkafka, such as the beginning."""

    topic: str
    partition: int
    offset: int


class StoredCheckpoint(NamedTuple):
    """The checkpoint of a subscription's shard that a Postgres server has."""

    subscription: str
    shard: int
    generation: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Fields of all events. `time` is the boot clock and `wall` is Unix time, both in seconds."""

    kind: ClassVar[str]
    type: EventType
    process: str
    time: float = field(default_factory=boot_seconds)
    wall: float = field(default_factory=clocks.time)
    number: int | None = None
    """Number of the operation, which tells several open operations of a process apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write(Event):
    """A transaction that writes records to the outbox. `fail` means that it was certainly rolled back."""

    kind = "write"
    transaction: str
    records: tuple[WrittenRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TermEvent(Event):
    """The term of a leader begins (`invoke`) or has ended (`ok`)."""

    kind = "term"
    leader_id: str
    shard: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkEvent(Event):
    """A leader has marked rows."""

    kind = "mark"
    leader_id: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce(Event):
    """A record is handed to the client."""

    kind = "produce"
    leader_id: str
    id: int
    event: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(Event):
    """The client reports the result of a send. If it is a failure or unknown, the event has a reason and may have no
    offset."""

    kind = "acknowledge"
    leader_id: str
    id: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStep(Event):
    """A step of a transaction in Kafka."""

    kind = "transaction"
    transactional_id: str
    leader_id: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge(Event):
    """A leader has deleted the rows of `ids`. `count` is the number of deleted rows."""

    kind = "purge"
    leader_id: str
    ids: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Event):
    """A leader has unmarked its rows."""

    kind = "reset"
    leader_id: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWrite(Event):
    """A checkpoint was stored, or refused (`fail`). `number` rises with each checkpoint of a generation."""

    kind = "checkpoint"
    subscription: str
    shard: int
    generation: int
    position: Mapping[str, object]
    leader_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Event):
    """A consumer got records, in this order."""

    kind = "poll"
    isolation: Isolation
    records: tuple[PolledRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign(Event):
    """A consumer was assigned partitions or has sought in them. Its earlier reads of these partitions do not count."""

    kind = "assign"
    partitions: tuple[ReadPosition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Event):
    """A consumer has applied a record."""

    kind = "effect"
    event: str
    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Park(Event):
    """Records were parked or held behind a parked record (`step` is `park`), or an operator retried or dropped them."""

    kind = "park"
    step: Literal["park", "retry", "drop"]
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLoss(Event):
    """A failover to a server that lacks the newest transactions. `events` are the records whose writes it lacks. Purges
    and checkpoints may be missing too.

    The old server ended at `since`. `backlog` has the records that are undelivered according to the new server's data,
    and `checkpoints` the checkpoints that this server has.
    """

    kind = "failover"
    events: tuple[str, ...]
    since: float
    backlog: tuple[str, ...] = ()
    checkpoints: tuple[StoredCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreatedTopic(Event):
    """A topic was deleted and has just been recreated, so that no record can have been written to the new topic yet.

    `events` were lost with the old topic: Kafka had acknowledged them, and they were not read. All records whose commit
    was confirmed by `since` had been read before the deletion.
    """

    kind = "recreate"
    topic: str
    events: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent(Event):
    """A fault that was injected into the system. It is for information only; the checker does not use it."""

    kind = "fault"
    fault: str
    step: Literal["begin", "end"]


KINDS: Mapping[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        Write,
        TermEvent,
        MarkEvent,
        Produce,
        Acknowledge,
        TransactionStep,
        Purge,
        Reset,
        CheckpointWrite,
        Poll,
        Assign,
        Effect,
        Park,
        FailoverLoss,
        RecreatedTopic,
        FaultEvent,
    )
}
