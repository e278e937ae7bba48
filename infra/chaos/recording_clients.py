"""`harvest run` with a history of its operations: `python -m infra.chaos.recording_clients HISTORY run -f …`.

This module replaces the factories of a harvester's parts by factories of recording wrappers. The product does not
depend on it. Recording costs a delivery report for each record, which batches do not need, and a line per event.
"""

import json
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from harvest_lib import cli
from harvest_lib.checkpoints.stores import IntentStore
from harvest_lib.config import HarvestConfig
from harvest_lib.consume import Intent
from harvest_lib.delivery import BatchCommitted, BatchOutcome, Sequenced
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.events import Event, LeaderAcquired, LeaderRefreshed
from harvest_lib.harvester import harvest as harvest_module
from harvest_lib.harvester.assembly import engine, factory
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.record.header import HEADER_NAME, unpack
from harvest_lib.source import ClaimedRows, ClaimSource, MarkPages, MarkSource
from infra.chaos.clock import OffClock, clock_of
from infra.chaos.history.events import (
    Acknowledge,
    CheckpointWrite,
    EventType,
    MarkEvent,
    Produce,
    Purge,
    Reset,
    TermEvent,
    TransactionStep,
)
from infra.chaos.history.events import Event as HistoryEvent
from infra.chaos.history.writer import HistoryWriter
from infra.chaos.recording_native import NativeRecorder, Place

OWN = (".neli", ".checkpoint")
"""Suffixes of the harvesters' own topics."""


class Recorder:
    """Writes the events of all parts of a process into its history, and tracks the current term of each shard."""

    def __init__(self, history: HistoryWriter, process: str, clock: OffClock) -> None:
        self._history, self._process = history, process
        self.clock = clock
        self._terms: dict[int, str] = {}
        self.sending = ""
        """The leader id under which batches are sent. One id suffices because a run has a single shard."""
        self._telling = threading.Lock()

    def tell(self, kind: type[HistoryEvent], how: str, **fields: Any) -> None:
        """Write an event of class `kind` and type `how` into the history."""
        self._history.append(kind(type=how, process=self._process, **fields))  # type: ignore[arg-type]

    def heard(self, event: Event) -> None:
        """Handle an event of the harvester: record the begin of a term, and the end of its shard's previous term."""
        with self._telling:
            if isinstance(event, LeaderAcquired | LeaderRefreshed):
                self._end(event.shard)
                self._terms[event.shard] = str(event.leader_id)
                self.tell(TermEvent, "invoke", leader_id=str(event.leader_id), shard=event.shard)
            elif hasattr(event, "shard"):
                self._end(event.shard)

    def outbound(self, leader_id: str, outbox_id: int, event: str) -> None:
        """Record that a record is handed over to the client."""
        self.tell(Produce, "invoke", leader_id=leader_id, id=outbox_id, event=event)

    def landed(self, sent: tuple[str, int], place: Place, reason: str | None) -> None:
        """Record the result of a send. `sent` is the leader id and the outbox id; `reason` is None on success."""
        topic, partition, offset = place
        said = {"leader_id": sent[0], "id": sent[1], "topic": topic, "partition": partition}
        if reason is None and offset is not None:
            self.tell(Acknowledge, "ok", **said, offset=offset)
        else:
            self.tell(Acknowledge, "info", **said, reason=reason or "without an offset")

    def _end(self, shard: int) -> None:
        if (before := self._terms.pop(shard, None)) is not None:
            self.tell(TermEvent, "ok", leader_id=before, shard=shard)


Report = Callable[[KafkaError | None, Message], None]


class RecordedProducer:
    """A producer that records messages and delivery reports. It ignores messages to the harvesters' own topics."""

    def __init__(self, recorder: Recorder, settings: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._id = str(settings.get("transactional.id", ""))
        self._sent: dict[str, deque[tuple[str, int]]] = defaultdict(deque)  # by event: a report has no headers
        if report := settings.get("on_delivery"):
            relay = self._relayed(report, errors_only=bool(settings.get("delivery.report.only.error")))
            settings = {**settings, "on_delivery": relay, "delivery.report.only.error": False}
        self._producer = Producer(dict(settings))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def produce(  # noqa: PLR0917 - the client's own
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        stamped = dict(headers or []).get(HEADER_NAME)
        report = callback or on_delivery
        if isinstance(stamped, bytes):
            leader_id, outbox_id = unpack(stamped)
            leader, event = str(leader_id), json.loads(value)["event"]
            self._recorder.outbound(leader, outbox_id, event)
            self._sent[event].append((leader, outbox_id))
            report = self._relayed(report) if report is not None else None
        if not timestamp and self._recorder.clock.off_seconds():  # the client would use the correct clock
            timestamp = int(self._recorder.clock.time() * 1000)
        self._producer.produce(topic, value, key, partition, report, None, timestamp, headers)

    def begin_transaction(self) -> None:
        self._step("begin", self._producer.begin_transaction)

    def commit_transaction(self, timeout: float) -> None:
        self._step("commit", lambda: self._producer.commit_transaction(timeout))

    def _step(self, step: str, call: Callable[[], object]) -> None:
        said = {"transactional_id": self._id, "leader_id": self._recorder.sending, "step": step}
        self._recorder.tell(TransactionStep, "invoke", **said)
        try:
            call()
        except KafkaException:
            self._recorder.tell(TransactionStep, "info", **said)
            raise
        self._recorder.tell(TransactionStep, "ok", **said)

    def _relayed(self, callback: Report, *, errors_only: bool = False) -> Report:
        def relay(error: KafkaError | None, message: Message) -> None:
            self._write(error, message)
            if error is not None or not errors_only:
                callback(error, message)

        return relay

    def _write(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        sent = (
            self._sent.get(json.loads(value).get("event")) if value and not str(message.topic()).endswith(OWN) else None
        )
        if not sent:
            return
        reason = error.str() if error else None
        self._recorder.landed(sent.popleft(), (message.topic(), message.partition(), message.offset()), reason)


class RecordedSource:
    """A recorded source that marks and purges. `of` maps the id under which it marks to the leader id of the term."""

    def __init__(self, recorder: Recorder, source: ClaimSource, of: Callable[[UUID], str] = str) -> None:
        self._recorder, self._source, self._of = recorder, source, of
        self._leader = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def open(self, leader_id: UUID) -> None:
        self._leader = self._of(leader_id)
        self._source.open(leader_id)

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        purge = {"leader_id": self._leader, "ids": tuple(delivered), "count": len(delivered)}
        try:
            batch = self._source.fetch(limit, delivered)
        except DatabaseUnavailable:
            if delivered:
                self._recorder.tell(Purge, "info", **purge)
            raise
        if delivered:
            self._recorder.tell(Purge, "ok", **purge)
        if batch.rows:
            self._recorder.tell(MarkEvent, "ok", leader_id=self._leader, ids=tuple(row[0] for row in batch.rows))
        return batch

    def reset(self, ids: Sequence[int]) -> None:
        self._source.reset(ids)
        self._recorder.tell(Reset, "ok", leader_id=self._leader, count=len(ids))


class RecordedStore:
    """A checkpoint store that records the checkpoints that it stores, but not mirrors of checkpoints in Kafka."""

    def __init__(self, recorder: Recorder, store: Any, shard: int) -> None:
        self._recorder, self._store, self._shard = recorder, store, shard
        self._leader = ""
        self._told: OutboxCheckpoint | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> None:
        self._leader = str(leader_id)
        self._store.lead(leader_id, after_epoch)

    def save_pending(self, checkpoint: OutboxCheckpoint, intents: Sequence[Intent]) -> bool:
        """Save a checkpoint with the acknowledgements that make its batch visible, and record both if it is new."""
        if checkpoint == self._told:
            return bool(self._store.save_pending(checkpoint, intents))
        said = {"transactional_id": "acknowledged", "leader_id": self._recorder.sending, "step": "commit"}
        self._recorder.tell(TransactionStep, "invoke", **said)
        self.tell(checkpoint, "invoke")
        try:
            is_kept = bool(self._store.save_pending(checkpoint, intents))
        except DatabaseUnavailable:
            self._recorder.tell(TransactionStep, "info", **said)
            raise
        self.tell(checkpoint, "ok" if is_kept else "fail")
        self._recorder.tell(TransactionStep, "ok" if is_kept else "fail", **said)
        return is_kept

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        was_kept = isinstance(self._store, IntentStore) and checkpoint == self._told  # saved with its batch
        if was_kept or self._store.kept_in != "postgres":
            return bool(self._store.save(checkpoint))
        self.tell(checkpoint, "invoke")
        saved: bool = self._store.save(checkpoint)
        self.tell(checkpoint, "ok" if saved else "fail")
        return saved

    def tell(self, checkpoint: OutboxCheckpoint, how: EventType) -> None:
        """Record a request (`invoke`) to store a checkpoint, or its result."""
        if how == "ok":
            self._told = checkpoint
        self._recorder.tell(
            CheckpointWrite,
            how,
            number=checkpoint.number,
            subscription="default",
            shard=self._shard,
            generation=checkpoint.generation,
            position=checkpoint.position or {},
            leader_id=self._leader,
        )


class RecordedBatches:
    """A delivery. If its store keeps the checkpoint in Kafka, each commit is recorded as a write of the checkpoint."""

    def __init__(self, recorder: Recorder, delivery: Any, store: Any) -> None:
        self._recorder, self._delivery, self._store = recorder, delivery, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        self._recorder.sending = str(leader_id)
        outcome: BatchOutcome = self._delivery.begin(leader_id, may_send)
        return outcome

    def commit(self, checkpoint: OutboxCheckpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        in_transaction = self._store.kept_in == "kafka"
        if in_transaction:
            self._store.tell(checkpoint, "invoke")
        outcome: BatchOutcome = self._delivery.commit(checkpoint, may_send)
        if in_transaction and isinstance(outcome, BatchCommitted):
            self._store.tell(checkpoint, "ok")
        return outcome


def recorded(recorder: Recorder, delivery: Any, store: Any, shard: int) -> tuple[RecordedBatches, Any]:
    """Wrap a delivery with a recorder. If its store keeps positions, wrap the store too."""
    if store.keeps_positions:
        store = RecordedStore(recorder, store, shard)
        if isinstance(delivery, Sequenced):
            vars(delivery)["_keep"] = store.save_pending
    return RecordedBatches(recorder, delivery, store), store


def record(recorder: Recorder, history: Path) -> None:
    """Record every harvester that this process constructs from now on."""

    def provider(settings: Mapping[str, Any]) -> Any:
        return native.made(lambda: RecordedProducer(recorder, settings))

    native = NativeRecorder(history, provider, recorder.outbound, recorder.landed)
    make_delivery, make_purging_delivery = factory.make_delivery, factory.make_purging_delivery

    def recorded_delivery(config: Any, table: Any, checkpoints: Any, topics: Any, shard: int, **providers: Any) -> Any:
        return recorded(recorder, *make_delivery(config, table, checkpoints, topics, shard, **providers), shard)

    def recorded_purging_delivery(*parts: Any) -> Any:
        return recorded(recorder, *make_purging_delivery(*parts), 0)

    def recorded_harvest(config: HarvestConfig) -> Harvest:
        harvest = Harvest(config, kafka_producer_provider=provider)
        harvest.set_event_handler(recorder.heard)
        return harvest

    class RecordedPages(MarkPages):
        """Marks each page under an id of its own. The recorder writes the current term's leader id instead."""

        def __init__(self, source: Any, *args: Any, **named: Any) -> None:
            recorded = RecordedSource(recorder, source, lambda _own: recorder.sending)
            super().__init__(cast("MarkSource", recorded), *args, **named)

    vars(engine)["make_delivery"] = recorded_delivery
    vars(engine)["make_purging_delivery"] = recorded_purging_delivery
    vars(factory)["MarkPages"] = RecordedPages
    vars(harvest_module)["Harvest"] = recorded_harvest


def main() -> None:
    """Take the history file from the command line, start to record, and run `harvest` with the other arguments."""
    file = Path(sys.argv.pop(1))
    with HistoryWriter(file) as history, suppress(KeyboardInterrupt):
        clock = clock_of(file)
        time.time = clock.time
        record(Recorder(history, file.stem, clock), file)
        cli.main()


if __name__ == "__main__":
    main()
