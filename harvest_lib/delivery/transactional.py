"""Delivery exactly once: a batch and the checkpoint after it go into one Kafka transaction.

Promises
- Readers of committed records see all of a batch and its checkpoint, or nothing of it; and records that the checkpoint
  has passed are never sent again.
- Beginning fences: an earlier user of the transactional id can commit nothing more; its open transaction is aborted.
- A transaction whose outcome is in doubt is never guessed about: the producer is discarded, and after the next `begin`
  the checkpoint shows whether it was committed. librdkafka retries the end of a transaction itself, and speaks the
  protocol before KIP-890, so a producer that had trouble is not to be trusted with the next one.
- A producer that was fenced never begins again under the same term: two leaders would fence each other without end.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.batches import PipelinedBatches
from harvest_lib.delivery.errors import FENCED, PURGED, SEVERAL_AT_A_TIME
from harvest_lib.delivery.protocol import (
    TERM_OVER,
    BatchCommitted,
    BatchDeliverySettings,
    BatchFenced,
    BatchOutcome,
)
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer
from harvest_lib.native import NativeSender, close_with_sender
from harvest_lib.record import Row

_TRANSACTION_SECONDS = 15
"""`transaction.timeout.ms`: a leader that is gone permanently, without a successor, holds up readers for so long."""
_LONGEST_SEND_SECONDS = 10
_BEGIN_SLICE_SECONDS = 0.1
"""If the one before has a transaction open, Kafka begins to abort it, which takes some milliseconds, and says that it
is to be asked again. librdkafka does so after half a second, which would be most of a failover: another producer asks
after this. Without an answer, the wait goes on."""
_BEGIN_SECONDS = 4.0
"""A stop waits for this attempt; a longer one is begun again."""
_LET_GO_SECONDS = 2.0
_WHY_SECONDS = 1.0
_APART_SECONDS = 60.0
"""After a transaction failed with its checkpoint, for so long its records have to land before a checkpoint is sent:
otherwise it would not be known which of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """The partition of the checkpoint topic that a subscription's shard has to itself, and the key of its records."""

    topic: str
    partition: int
    key: str


class Transactional(PipelinedBatches):
    """`Delivery` by Kafka transactions, under one transactional id."""

    _wire_seconds = 0.0
    _native_settings = SEVERAL_AT_A_TIME

    def __init__(
        self, settings: BatchDeliverySettings, topics: Topics, transactional_id: str, place: CheckpointPlace
    ) -> None:
        self._transactional_id = transactional_id
        self._place = place
        self._open = self._has_begun = False
        self._apart_until = 0.0
        super().__init__(settings, topics)

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        deadline = Deadline(_BEGIN_SECONDS)
        self._renew_producer(leader_id, may_send)
        while True:
            outcome = self._attempt(lambda producer: producer.init_transactions(_BEGIN_SLICE_SECONDS))
            if self._failure is None or not self._failure.retriable() or deadline.passed or not may_send():
                return outcome
            if self._failure.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                self._renew_producer(leader_id, may_send)
            self._failure = None

    def _renew_producer(self, leader_id: UUID, may_send: Callable[[], bool]) -> None:
        if self._has_begun:
            self._discard()  # it may be in the middle of something
        self._has_begun = True
        self._open = False
        super().begin(leader_id, may_send)

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        if not self._open and self._failure is None:
            outcome = self._attempt(lambda producer: producer.begin_transaction())
            self._open = isinstance(outcome, BatchCommitted)
        return super().send(rows, may_send) if self._open else {}

    def commit(self, checkpoint: bytes, may_send: Callable[[], bool], /) -> BatchOutcome:
        if not self._open and self._failure is None:
            self._open = isinstance(self._attempt(lambda producer: producer.begin_transaction()), BatchCommitted)
        if boot_seconds() < self._apart_until and not isinstance(acked := self.flush(may_send), BatchCommitted):
            return self._outcome(acked)
        if self._failure is None:
            place, report = self._place, partial(self._report_own, "the checkpoint")
            of_record = place.topic, checkpoint, place.key, place.partition, report
            self._attempt(
                lambda producer: self._when_there_is_room(partial(producer.produce, *of_record), may_send)
            )  # records of the batch may have filled the queue
        acked = self.flush(may_send)
        if not isinstance(acked, BatchCommitted):
            return self._outcome(acked)
        if not may_send():
            return TERM_OVER
        self._open = False
        return self._attempt(lambda producer: producer.commit_transaction(self._settings.delivery_timeout_seconds))

    def _collect_reasons(self, deadline: Deadline) -> None:
        """See `PipelinedBatches`. A record purged with its transaction gives no reason; the transaction does."""
        super()._collect_reasons(deadline)
        assert self._producer is not None  # noqa: S101 - there was a batch
        if self._failure is not None and self._failure.code() in PURGED:
            try:
                self._producer.commit_transaction(_WHY_SECONDS)  # refused, as records of it have failed
            except KafkaException as error:
                self._failure = error.args[0]

    def _report_own(self, what: str, error: KafkaError | None, message: object) -> None:
        if error is not None:
            self._apart_until = boot_seconds() + _APART_SECONDS
        super()._report_own(what, error, message)

    def _attempt(self, call: Callable[[KafkaProducer], object]) -> BatchOutcome:
        return self._outcome(super()._attempt(call))

    def _failed(self, error: KafkaError) -> None:
        # A producer that was fenced refuses records as one that met with a fatal error, and says a little later which.
        super()._failed(error)
        if error.code() in FENCED:
            self._failure = error

    def _outcome(self, outcome: BatchOutcome) -> BatchOutcome:
        if self._failure is not None and self._failure.code() in FENCED:
            return BatchFenced(reason=self._failure.str())
        return outcome

    def abandon(self) -> bool:
        self._discard()
        return False  # it does, in a transaction that is aborted

    def _close_producer(self, producer: KafkaProducer) -> None:
        """Close a producer. To close is to abort what is open: that waits for a broker for as long as it takes, and is
        refused to a producer that was fenced. The next transaction aborts it in any case, so nobody waits long."""
        closing = threading.Thread(target=_close, args=(producer, self._sender), name="harvest-close", daemon=True)
        closing.start()
        closing.join(_LET_GO_SECONDS)

    def _own_settings(self) -> dict[str, object]:
        longest = min(self._settings.delivery_timeout_seconds, _LONGEST_SEND_SECONDS)
        return {
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": _TRANSACTION_SECONDS * 1000,
            "message.timeout.ms": int(longest * 1000),
        }


def _close(producer: KafkaProducer, sender: NativeSender | None) -> None:
    with suppress(KafkaException):
        close_with_sender(producer, sender)
