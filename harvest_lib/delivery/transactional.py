"""Delivery exactly once: a batch and the checkpoint after it go into a Kafka transaction.

Promises
- Readers of committed records see either a whole batch with its checkpoint, or nothing of the batch. Records that the
  checkpoint has passed are never sent again.
- `begin` fences: an earlier user of the transactional id can commit nothing more, and its open transaction is aborted.
- The outcome of a transaction is never guessed. If the outcome is unknown, the producer is discarded, and after the
  next `begin` the checkpoint shows whether the transaction was committed. librdkafka retries the end of a transaction
  itself, and uses the protocol before KIP-890, so a producer that had an error gets no further transaction.
- A producer that was fenced never begins again under the same term: two leaders would fence each other without end.
- A batch begins only when the batch before it was committed. `begin` begins both producers, so no earlier leader can
  commit anything afterwards. If a leader was frozen between its two producers, it does not begin the second producer,
  so it fences its successor under the first transactional id alone.

Two producers take turns, batch by batch. Kafka answers a commit as soon as it is decided, and then writes the markers
that readers wait for. Until the markers are written, which takes a few milliseconds, Kafka refuses a further
transaction under the same transactional id, and librdkafka retries only after 20 ms. So the next batch uses the other
id.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.client import ProducerKind
from harvest_lib.delivery.errors import PURGED, SEVERAL_AT_A_TIME
from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.delivery.protocol import (
    CHECKPOINT_REFUSED,
    TERM_OVER,
    Abandoned,
    BatchCommitted,
    BatchDeliverySettings,
    BatchOutcome,
)
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer
from harvest_lib.native import NativeSender, close_with_sender
from harvest_lib.process import threads
from harvest_lib.record import Row
from harvest_lib.record.checkpoint import OutboxCheckpoint

TRANSACTION_SECONDS = 15
"""`transaction.timeout.ms` in seconds: readers wait this long for a leader that crashed and has no successor."""
_LONGEST_SEND_SECONDS = 10
_BEGIN_SLICE_SECONDS = 0.1
"""Time limit of one call that begins. If the previous leader left a transaction open, Kafka needs some milliseconds to
abort it, and the client has to retry. librdkafka would retry after half a second, which would be most of a failover. So
after this time a new producer retries. If Kafka has not answered yet, the same producer waits again."""
_BEGIN_SECONDS = 4.0
"""Time limit of an attempt to begin. It is short because a stop waits for the attempt. A failed attempt is repeated."""
_LET_GO_SECONDS = 2.0
_WHY_SECONDS = 1.0
_APART_SECONDS = 60.0
"""For this time after a checkpoint has failed, the records of a batch are flushed before the batch's checkpoint is
sent. If both were flushed together, it would be unknown whether a record or the checkpoint failed."""


Encode = Callable[[OutboxCheckpoint], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """The partition of the checkpoint topic that belongs to one shard of a subscription, and the key of its records."""

    topic: str
    partition: int
    key: str


class Transactional:
    """`Delivery` by Kafka transactions. `encode` returns a checkpoint as the value of a record; None if the checkpoint
    is refused."""

    def __init__(self, producers: Sequence["TransactionalProducer"], encode: Encode) -> None:
        self._producers = list(producers)  # the first is the next to send
        self._encode = encode

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        outcome: BatchOutcome = BatchCommitted()
        for each in self._producers:
            if not may_send():  # this leader may have been frozen: a further `begin` would fence its successor
                return TERM_OVER
            outcome = each.begin(leader_id, may_send)
            if not isinstance(outcome, BatchCommitted):
                break
        return outcome

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._producers[0].hand_over(rows, may_send)

    def commit(self, checkpoint: OutboxCheckpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        encoded = self._encode(checkpoint)
        if encoded is None:
            return CHECKPOINT_REFUSED
        outcome = self._producers[0].commit(encoded, may_send)
        if isinstance(outcome, BatchCommitted):
            self._producers.append(self._producers.pop(0))
        return outcome

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:  # noqa: ARG002 - readers wait for the marks alone
        return BatchCommitted()

    def abandon(self) -> Abandoned:
        for each in self._producers:
            each.discard()
        return Abandoned()  # records on the wire arrive in a transaction that is aborted


class TransactionalProducer:
    """Producer with one transactional id. The two producers of a delivery send batches by turns."""

    def __init__(
        self, settings: BatchDeliverySettings, topics: Topics, transactional_id: str, place: CheckpointPlace
    ) -> None:
        longest = min(settings.delivery_timeout_seconds, _LONGEST_SEND_SECONDS)
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
            "message.timeout.ms": int(longest * 1000),
        }
        kind = ProducerKind(settings=own, native_settings=SEVERAL_AT_A_TIME, fences=True, close=_close_soon)
        self._producer = BatchProducer(settings, topics, kind)
        self._failures = self._producer.failures
        self._commit_seconds = settings.delivery_timeout_seconds
        self._place = place
        self._open = self._has_begun = False
        self._apart_until = inf if settings.is_limited else 0.0

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        """Fence earlier users of the transactional id."""
        deadline = Deadline(_BEGIN_SECONDS)
        self._renew_producer(leader_id)
        while True:
            outcome = self._producer.attempt(lambda client: client.init_transactions(_BEGIN_SLICE_SECONDS))
            failure = self._failures.first
            if failure is None or not failure.retriable() or deadline.passed or not may_send():
                return outcome
            if failure.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                self._renew_producer(leader_id)
            self._failures.first = None

    def _renew_producer(self, leader_id: UUID) -> None:
        if self._has_begun:
            self._producer.discard()  # a call of the old client may be unfinished
        self._has_begun = True
        self._open = False
        self._producer.begin(leader_id)

    def hand_over(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over within the transaction; see `Delivery.send`."""
        self._open_transaction()
        return self._producer.hand_over(rows, may_send) if self._open else {}

    def commit(self, checkpoint: bytes, may_send: Callable[[], bool]) -> BatchOutcome:
        """Commit the transaction, with the record of the checkpoint."""
        self._open_transaction()
        if boot_seconds() < self._apart_until and not isinstance(acked := self._flush(may_send), BatchCommitted):
            return acked
        if self._failures.first is None:
            place = self._place
            self._producer.send_own((place.topic, checkpoint, place.key, place.partition), self._report, may_send)
        acked = self._flush(may_send)
        if not isinstance(acked, BatchCommitted):
            return acked
        if not may_send():
            return TERM_OVER
        self._open = False
        return self._producer.attempt(lambda client: client.commit_transaction(self._commit_seconds))

    def discard(self) -> None:
        """Let no further record leave."""
        self._producer.discard()

    def _open_transaction(self) -> None:
        if not self._open and self._failures.first is None:
            outcome = self._producer.attempt(lambda client: client.begin_transaction())
            self._open = isinstance(outcome, BatchCommitted)

    def _flush(self, may_send: Callable[[], bool]) -> BatchOutcome:
        return self._producer.flush(may_send, self._explain)

    def _explain(self, client: KafkaProducer) -> None:
        """Find out why records were purged with their transaction. Only the transaction's error has the reason."""
        if self._failures.first is not None and self._failures.first.code() in PURGED:
            try:
                client.commit_transaction(_WHY_SECONDS)  # refused, because records of the transaction have failed
            except KafkaException as error:
                self._failures.first = error.args[0]

    def _report(self, error: KafkaError | None, _message: object) -> None:
        """Note the delivery report of a checkpoint's record."""
        if error is not None:
            self._apart_until = max(self._apart_until, boot_seconds() + _APART_SECONDS)
        self._failures.report_own("the checkpoint", error)


def _close_soon(client: KafkaProducer, sender: NativeSender | None) -> None:
    """Close a client on another thread, and wait a little for that thread. Closing a client aborts its transaction. The
    abort may wait for a broker without limit, and fails for a fenced producer. Readers do not wait long in any case,
    because the next `begin` aborts the transaction too."""
    closing = threads.start("harvest-close", lambda: _close(client, sender))
    closing.join(_LET_GO_SECONDS)


def _close(client: KafkaProducer, sender: NativeSender | None) -> None:
    with suppress(KafkaException):
        close_with_sender(client, sender)
