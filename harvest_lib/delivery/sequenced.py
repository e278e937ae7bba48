"""Delivery exactly once without Kafka transactions, by the design of Gazette: records are pending until acknowledged.

    send (pending) ─► commit: batch is in Kafka ─► checkpoint and acknowledgements are saved ─► acknowledge ─► send …
                                                   (in Postgres, under the epoch)               (`settle` waits)

Readers pass their messages through `harvest_lib.consume.Sequencer`. It holds pending records until a later message of
the same producer acknowledges them, and it drops repeated records.

Promises
- An acknowledgement is sent only once it is saved, together with the checkpoint that has passed its records. The next
  leader writes saved acknowledgements again (`acknowledge_again`) before it sends anything. So readers in the end see
  each batch whose checkpoint was saved, and no other batch.
- No two messages of a producer share an id. Ids of acknowledgements are saved with the checkpoint: an acknowledgement
  that is written again has the same id.
- Each `begin` makes a new producer id. Unsaved records under an earlier id are never acknowledged, so it does not
  matter when they arrive.
- In each partition acknowledgements precede the next batch's records. A later acknowledgement would roll these records
  back.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib import errors
from harvest_lib.clock import boot_seconds
from harvest_lib.delivery.at_least_once import expiry_settings
from harvest_lib.delivery.client import ProducerKind
from harvest_lib.delivery.message_ids import MessageIds
from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.delivery.protocol import (
    CHECKPOINT_REFUSED,
    TERM_OVER,
    Abandoned,
    BatchCommitted,
    BatchDeliverySettings,
    BatchFailed,
    BatchOutcome,
)
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer, KafkaProducerProvider, topic_partitions
from harvest_lib.record import Row
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.sequencing.message_id import HEADER_NAME, Clock, Flag, new_producer_id
from harvest_lib.sequencing.publisher import Intent, Publisher

Keep = Callable[[OutboxCheckpoint, Sequence[Intent]], bool]

_CLEAR_SECONDS = 1.0
"""Least interval between removals of written acknowledgements from the checkpoint."""
_AGAIN_SECONDS = 5.0
"""Time limit of an attempt to acknowledge again. It is short because a stop waits for the attempt. A failed attempt is
repeated."""
_CONNECT_SECONDS = 1.0
_LAST_SECONDS = 2.0
"""Limit of the wait for acknowledgements at the end of a term. The next leader writes unconfirmed acknowledgements."""
_REFUSED = (
    "the topic refuses the acknowledgement of its last records ({reason}): set its `cleanup.policy` to delete, or "
    "raise its `max.message.bytes`; some seconds later `harvest park retry`"
)


class Sequenced:
    """`Delivery` whose records are pending until the checkpoint of their batch is saved."""

    def __init__(
        self, settings: BatchDeliverySettings, topics: Topics, keep: Keep, keep_pending: Callable[[], bool]
    ) -> None:
        """`keep` saves a checkpoint with its acknowledgements. `keep_pending` repeats acknowledgements that a topic has
        not taken yet because it was unavailable. Both return False if the checkpoint was refused."""
        self._keep, self._keep_pending = keep, keep_pending
        self._to_clear: OutboxCheckpoint | None = None  # saved with acknowledgements that are on the wire
        self._clear_at = 0.0
        self._ids = MessageIds()
        self._touched: set[tuple[str, int]] = set()  # partitions that have records of this batch
        self._unread = 0  # number of acknowledgements that Kafka has not confirmed
        self._alone_seconds = settings.delivery_timeout_seconds if settings.is_limited else 0.0
        own = expiry_settings(settings.expiry_seconds)
        kind = ProducerKind(settings=own, arrived=lambda *place: self._touched.add(place))
        self._producer = BatchProducer(settings, topics, kind)

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:  # noqa: ARG002 - it fences no leader
        self._to_clear = None
        self._ids = MessageIds()
        self._producer.begin(leader_id, self._ids)
        self._producer.take_places()
        self._touched.clear()
        self._unread = 0
        return BatchCommitted()

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._producer.hand_over(rows, may_send)

    def commit(self, checkpoint: OutboxCheckpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        outcome = self._producer.flush(may_send)
        if not isinstance(outcome, BatchCommitted):
            return outcome
        if not may_send():
            return TERM_OVER
        intents = self._take_intents()
        if not self._keep(checkpoint, intents):
            return CHECKPOINT_REFUSED
        self._to_clear = checkpoint if intents else None
        return self._acknowledge(intents)

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        outcome = self._producer.flush(may_send)
        checkpoint = self._to_clear
        if isinstance(outcome, BatchCommitted) and checkpoint is not None and boot_seconds() >= self._clear_at:
            # A later leader would write acknowledgements that are left in the checkpoint. Their topic may be gone then.
            self._to_clear = None
            self._clear_at = boot_seconds() + _CLEAR_SECONDS
            return outcome if self._keep(checkpoint, ()) else CHECKPOINT_REFUSED
        if isinstance(outcome, BatchCommitted) and checkpoint is None and not self._keep_pending():
            return CHECKPOINT_REFUSED
        return outcome

    def abandon(self) -> Abandoned:
        # Records queued behind an acknowledgement may leave with it. No reader ever sees them.
        self._producer.flush_for(_LAST_SECONDS, lambda: self._unread > 0)
        self._producer.discard()
        return Abandoned()  # records on the wire are never acknowledged

    def _take_intents(self) -> Sequence[Intent]:
        """Return an acknowledgement for each partition with records sent since the last call."""
        self._touched.update(self._producer.take_places())
        intents = [
            Intent(topic=topic, partition=number, id=self._ids.next(Flag.ACK_TXN))
            for topic, number in sorted(self._touched)
        ]
        self._touched.clear()
        return intents

    def _acknowledge(self, intents: Sequence[Intent]) -> BatchOutcome:
        """Send saved acknowledgements, at most as many as there were records. The next flush waits until Kafka has
        confirmed the acknowledgements. If the number of records in flight is limited, this call waits instead."""
        outcome = self._producer.attempt(partial(self._produce, intents))
        if self._alone_seconds and isinstance(outcome, BatchCommitted):
            self._producer.flush_for(self._alone_seconds, lambda: self._unread > 0)
            if self._unread:
                return BatchFailed(reason="Kafka did not confirm an acknowledgement in time")
        return outcome

    def _produce(self, intents: Sequence[Intent], client: KafkaProducer) -> None:
        for intent in intents:
            headers = [(HEADER_NAME, intent.id)]
            produce = partial(client.produce, intent.topic, None, None, intent.partition)
            produce(on_delivery=self._acknowledged, timestamp=0, headers=headers)
            self._unread += 1

    def _acknowledged(self, error: KafkaError | None, _message: object) -> None:
        self._unread -= 1
        self._producer.failures.report_own("an acknowledgement", error)


def acknowledge_again(
    settings: Mapping[str, object],
    intents: Sequence[Intent],
    provider: KafkaProducerProvider = Producer,
    topics: Topics | None = None,
) -> Sequence[Intent]:
    """Write saved acknowledgements, and wait until Kafka has them. Return the acknowledgements that were not written,
    because their topics refuse them or are missing. Readers would see new records of a refusing topic before the
    acknowledged records, so `topics` closes such a topic until it takes the acknowledgement.

    Writing an acknowledgement again is harmless once no other process can send valid records under its producer id.
    Raises KafkaUnavailable.
    """
    try:
        partitions = topic_partitions(settings)
        missing = [each for each in intents if each.partition >= partitions.get(each.topic, 0)]
        refused = _write(settings, [each for each in intents if each not in missing], provider)
    except errors.KafkaError as error:
        raise errors.KafkaUnavailable(
            f"the last delivered records could not be acknowledged: {error.cause}",
            evidence=f"{error.evidence}; topics {', '.join(sorted({each.topic for each in intents}))}",
            next_step=f"readers of committed messages wait for it: {error.next_step}",
        ) from error
    if topics is not None:
        topics.close({topic: _REFUSED.format(reason=reason) for topic, reason in refused.items()})
    return [each for each in intents if each in missing or each.topic in refused]


def _connected(provider: KafkaProducerProvider, topic: str, settings: dict[str, Any]) -> KafkaProducer:
    """Make a producer and connect it. An unconnected producer requests its producer id only after half a second. The
    first message of an unconnected producer was in Kafka after 0.51 s, the first message of a connected producer after
    0.06 s (one broker, median of five)."""
    producer: KafkaProducer = provider(settings)
    with suppress(KafkaException):  # the next call reports an unavailable broker
        producer.list_topics(topic, _CONNECT_SECONDS)
    return producer


def _write(
    settings: Mapping[str, object], intents: Sequence[Intent], provider: KafkaProducerProvider
) -> Mapping[str, str]:
    """Write acknowledgements. Return the topics that refuse them permanently, each with Kafka's reason. A refusal does
    not name the topic, so after a refusal each topic is tried alone."""
    if not intents:
        return {}
    publisher = Publisher(
        settings,
        producer_id=new_producer_id(),
        clock=Clock(time.time_ns),
        timeout_seconds=_AGAIN_SECONDS,
        provider=partial(_connected, provider, intents[0].topic),
    )
    try:
        publisher.acknowledge(intents)
        publisher.flush()
    except errors.KafkaError:
        if not publisher.refusal:
            raise
    finally:
        publisher.close()
    topics = sorted({each.topic for each in intents})
    if not publisher.refusal or len(topics) == 1:
        return dict.fromkeys(topics, publisher.refusal) if publisher.refusal else {}
    refused: dict[str, str] = {}
    for topic in topics:
        refused |= _write(settings, [each for each in intents if each.topic == topic], provider)
    return refused
