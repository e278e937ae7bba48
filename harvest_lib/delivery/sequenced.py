"""Delivery exactly once without Kafka transactions, by the design of Gazette: records are pending until acknowledged.

    send (pending) ─► commit: all of it is in Kafka ─► checkpoint and acknowledgements are kept ─► acknowledge ─► send …
                                                       (in Postgres, under the epoch)              (`settle` waits)

Readers pass their messages through `harvest_lib.consume.Sequencer`, which holds pending records until a message of
their producer's acknowledges them, and drops the repeated ones.

Promises
- An acknowledgement leaves only once it is kept together with the checkpoint that has passed its records. The next
  leader writes kept ones again (`acknowledge_again`) before it sends anything: a batch whose checkpoint counts is read
  in the end, any other never.
- No two messages of a producer share an id. Those of acknowledgements are kept with the checkpoint: written again, an
  acknowledgement has the same.
- Each `begin` has a producer id of its own. Records sent under the one before and not kept are never acknowledged, so
  they may arrive at any time.
- In each partition acknowledgements go before the records of the next batch, which they would roll back otherwise.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib import errors
from harvest_lib.clock import Deadline
from harvest_lib.delivery.batches import PipelinedBatches
from harvest_lib.delivery.headers import HeaderMaker
from harvest_lib.delivery.protocol import BatchDeliverySettings, BatchOutcome
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer, KafkaProducerProvider, topic_partitions
from harvest_lib.sequencing.message_id import HEADER_NAME, Clock, Flag, new_producer_id, pack
from harvest_lib.sequencing.publisher import Intent, Publisher

_AGAIN_SECONDS = 5.0
"""A stop waits for this attempt; a longer one is abandoned and retried."""
_CONNECT_SECONDS = 1.0
_LAST_SECONDS = 2.0
"""At the end of a term acknowledgements are waited for; the next leader writes those that have not left by then."""
_SLICE_SECONDS = 0.1
_REFUSED = (
    "the topic refuses the acknowledgement of what was delivered last ({reason}): set its `cleanup.policy` to delete, "
    "or raise its `max.message.bytes`; some seconds later `harvest park retry`"
)


class Sequenced(PipelinedBatches):
    """Batches whose records are pending until their batch's checkpoint is kept."""

    _wire_seconds = 0.0

    def __init__(self, settings: BatchDeliverySettings, topics: Topics) -> None:
        super().__init__(settings, topics)
        self._producer_id, self._clock = new_producer_id(), Clock(time.time_ns)
        self._touched: set[tuple[str, int]] = set()  # partitions that have records of this batch
        self._unread = 0  # acknowledgements that are on their way

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        outcome = super().begin(leader_id, may_send)
        self._producer_id, self._clock = new_producer_id(), Clock(time.time_ns)
        self._touched.clear()
        if self._sender is not None:
            self._sender.take_places()
        self._unread = 0
        self._headers_of = self._with_ids(self._headers_of)
        return outcome

    def take_intents(self) -> Sequence[Intent]:
        """Return the acknowledgements of records sent since the last ones, one for each partition."""
        if self._sender is not None:
            self._touched.update(self._sender.take_places())
        intents = [
            Intent(topic=topic, partition=number, id=self._next_id(Flag.ACK_TXN))
            for topic, number in sorted(self._touched)
        ]
        self._touched.clear()
        return intents

    def acknowledge(self, intents: Sequence[Intent]) -> BatchOutcome:
        """Send acknowledgements, once they are kept. The next `flush` waits for them."""
        return self._attempt(partial(self._acknowledge, intents))

    def abandon(self) -> bool:
        # Records queued behind an acknowledgement may leave with it: nobody will ever read them.
        deadline = Deadline(_LAST_SECONDS)
        while self._unread and self._failure is None and self._producer is not None and not deadline.passed:
            self._serve(partial(self._producer.flush, _SLICE_SECONDS))
        self._discard()
        return False  # it may, and is never read

    def _acknowledge(self, intents: Sequence[Intent], producer: KafkaProducer) -> None:
        for intent in intents:
            headers = [(HEADER_NAME, intent.id)]
            producer.produce(intent.topic, None, None, intent.partition, self._acknowledged, None, 0, headers)
            self._unread += 1

    def _acknowledged(self, error: KafkaError | None, message: object) -> None:
        self._unread -= 1
        self._report_own("an acknowledgement", error, message)

    def _report(self, error: KafkaError | None, message: Any) -> None:
        super()._report(error, message)
        if error is None and message is not None:
            self._touched.add((message.topic(), message.partition()))

    def _with_ids(self, headers_of: HeaderMaker) -> HeaderMaker:
        """Have each record carry its id, before headers of its own that may have the same name."""
        producer, tick = self._producer_id, self._clock.tick

        def make(
            record_id: int, names: Sequence[str], contents: Sequence[str | None]
        ) -> list[tuple[str, str | bytes | None]]:
            headers = headers_of(record_id, names, contents)
            headers.insert(0, (HEADER_NAME, pack(producer, tick(), Flag.CONTINUE_TXN)))
            return headers

        return make

    def _next_ids(self, count: int) -> dict[str, int]:
        return {"producer_id": self._producer_id, "clock": self._clock.ticks(count)}

    def _make_producer(self) -> KafkaProducer:
        producer = super()._make_producer()
        if self._sender is not None:
            self._sender.track()
        return producer

    def _next_id(self, flag: Flag) -> bytes:
        return pack(self._producer_id, self._clock.tick(), flag)

    def _own_settings(self) -> dict[str, object]:
        # Only a report says which partition a record went to.
        return {**super()._own_settings(), "delivery.report.only.error": False}


def acknowledge_again(
    settings: Mapping[str, object],
    intents: Sequence[Intent],
    provider: KafkaProducerProvider = Producer,
    topics: Topics | None = None,
) -> Sequence[Intent]:
    """Write acknowledgements that were kept, and wait until Kafka has them; return those whose topic is not there, or
    refuses them. Records of the latter would be read before what is acknowledged: `topics` closes it until then.

    To repeat that is harmless, once nobody can send anything more under their producer's id that counts. Raises
    KafkaUnavailable.
    """
    try:
        partitions = topic_partitions(settings)
        missing = [each for each in intents if each.partition >= partitions.get(each.topic, 0)]
        refused = _write(settings, [each for each in intents if each not in missing], provider)
    except errors.KafkaError as error:
        raise errors.KafkaUnavailable(
            f"what was delivered last could not be acknowledged: {error.cause}",
            evidence=f"{error.evidence}; topics {', '.join(sorted({each.topic for each in intents}))}",
            next_step=f"readers of committed messages wait for that: {error.next_step}",
        ) from error
    if topics is not None:
        topics.close({topic: _REFUSED.format(reason=reason) for topic, reason in refused.items()})
    return [each for each in intents if each in missing or each.topic in refused]


def _connected(provider: KafkaProducerProvider, topic: str, settings: dict[str, Any]) -> KafkaProducer:
    """Make a producer that has connected. One that has not asks for what makes it idempotent after half a second: its
    first message was in Kafka after 0.51 s, and after 0.06 s so (one broker, median of five)."""
    producer: KafkaProducer = provider(settings)
    with suppress(KafkaException):  # a broker that is away is met with in a moment
        producer.list_topics(topic, _CONNECT_SECONDS)
    return producer


def _write(
    settings: Mapping[str, object], intents: Sequence[Intent], provider: KafkaProducerProvider
) -> Mapping[str, str]:
    """Write acknowledgements; return the topics that refuse them permanently, with Kafka's reason. Kafka names none:
    each topic is tried alone if there is one."""
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
