"""Publishes messages with ids, singly or in a transaction. Readers see the messages of a transaction after it was
acknowledged.

    publish_uncommitted, … ─► intents ─► (the caller saves them, in its own transaction) ─► acknowledge

Promises
- Intents are made only after Kafka has every message that they acknowledge, on every in-sync replica. If a caller saves
  intents and crashes, its successor writes them again. `acknowledge` may be repeated before the first message of the
  next transaction. A repetition after that message rolls the message back.
- In each partition the messages of the next transaction follow the acknowledgements of this transaction, if the
  acknowledgements were handed over first.
- Each intent contains the id of its acknowledgement: an acknowledgement that is written again has the same id.
- Only one request is on the wire at a time, so every message that is reported as delivered is in a log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib.clock import Deadline
from harvest_lib.errors import RecordError
from harvest_lib.kafka_client import KafkaProducer, KafkaProducerProvider, client_settings, refused_settings, translate
from harvest_lib.sequencing.message_id import HEADER_NAME, Clock, Flag, pack

_DeliveryReport = Callable[[KafkaError | None, Any], None]

_NEVER_TAKEN = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._UNKNOWN_PARTITION,
}
_QUEUE_KBYTES, _MESSAGE_BYTES = 32_768, 1_000_000
_FULL_SECONDS = 0.05
_OWN = {
    "allow.auto.create.topics": False,
    "enable.idempotence": True,
    "acks": "all",
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 0,
    "linger.ms": 5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An acknowledgement to be written to a partition. `id` is its message id."""

    topic: str
    partition: int
    id: bytes

    def to_json(self) -> list[Any]:
        """Return the intent as values for JSON."""
        return [self.topic, self.partition, self.id.hex()]

    @classmethod
    def of_json(cls, value: Sequence[Any]) -> "Intent":
        """Return the intent from a value of `to_json`. Raises TypeError or ValueError for any other value."""
        topic, partition, message_id = value
        return cls(topic=topic, partition=partition, id=bytes.fromhex(message_id))


def bounded_queue(settings: Mapping[str, object]) -> dict[str, object]:
    """Return a producer's settings with a limit for the bytes in its queue, because librdkafka's default is 1 GB. A
    limit in the user's settings takes precedence. The added limit has room for two messages of the largest size."""
    largest = int(str(settings.get("message.max.bytes", _MESSAGE_BYTES)))
    return {"queue.buffering.max.kbytes": max(_QUEUE_KBYTES, 2 * largest // 1024), **settings}


class PublishRefused(RecordError):
    """Kafka refuses a message permanently. `about` is the value that the caller passed with the message."""

    def __init__(self, error: KafkaError, topic: str, about: Any) -> None:
        self.about = about
        super().__init__(
            f"Kafka takes no such message for {topic!r}",
            evidence=error.str(),
            next_step="where it is too large, make it smaller, or raise `message.max.bytes`, and the topic's "
            "`max.message.bytes`; where its partition is unknown, name a partition of the topic",
        )


class Publisher:
    """Publisher of messages under a producer id. A single thread uses it."""

    def __init__(
        self,
        settings: Mapping[str, object],
        *,
        producer_id: int,
        clock: Clock,
        timeout_seconds: float = 30.0,
        provider: KafkaProducerProvider = Producer,
    ) -> None:
        """`timeout_seconds` limits the wait until Kafka has all messages that were handed over."""
        self._settings = settings
        with refused_settings():
            self._producer: KafkaProducer = provider(client_settings(bounded_queue(settings), **_OWN))
        self._producer_id, self._clock = producer_id, clock
        self._timeout_seconds = timeout_seconds
        self._pending: set[tuple[str, int]] = set()
        self._error: KafkaError | None = None
        self._refused: PublishRefused | None = None

    def publish_committed(self, topic: str, value: bytes | None, **named: Any) -> None:
        """Publish a message outside of any transaction. `named` may have `key`, `partition` and a list of `headers`.

        Do not mix committed and uncommitted messages in a partition: a committed message would roll back uncommitted
        messages before it.
        """
        self._produce(topic, value, self._next_id(Flag.OUTSIDE_TXN), self._sent, **named)

    def publish_uncommitted(self, topic: str, value: bytes | None, *, about: Any = None, **named: Any) -> None:
        """Publish a message that is pending until it is acknowledged. If Kafka refuses the message permanently, this
        call, `intents` or `flush` raises PublishRefused with the value `about`."""
        on_delivery = self._sent_uncommitted if about is None else partial(self._sent_uncommitted, about=about)
        self._produce(topic, value, self._next_id(Flag.CONTINUE_TXN), on_delivery, about=about, **named)

    def intents(self) -> list[Intent]:
        """End the transaction: wait until Kafka has all of its messages. Return an intent for each partition that has
        messages of the transaction.

        Raises KafkaUnavailable, KafkaAccessDenied or PublishRefused. After an error the publisher cannot be used.
        """
        self.flush()
        intents = [
            Intent(topic=topic, partition=partition, id=self._next_id(Flag.ACK_TXN))
            for topic, partition in sorted(self._pending)
        ]
        self._pending.clear()
        return intents

    def acknowledge(self, intents: Iterable[Intent]) -> None:
        """Hand over acknowledgements, of this publisher or of a predecessor. `flush` waits until Kafka has them."""
        for intent in intents:
            self._produce(intent.topic, None, intent.id, self._sent, partition=intent.partition)

    def flush(self) -> None:
        """Wait until Kafka has all messages that were handed over. Raises the errors of `intents`."""
        deadline = Deadline(self._timeout_seconds)
        while len(self._producer) and not deadline.passed and self._error is None:
            self._serve(self._producer.flush, min(0.5, deadline.remaining_seconds))
        if self._error is not None or len(self._producer):
            raise self._failed()

    @property
    def refusal(self) -> str:
        """Return why Kafka has refused a message permanently; an empty string if Kafka has refused no message."""
        return self._error.str() if self._error is not None and self._error.code() in _NEVER_TAKEN else ""

    def _failed(self) -> Exception:
        if self._refused is not None:
            return self._refused
        error = self._error or KafkaError(KafkaError._TIMED_OUT, f"not taken within {self._timeout_seconds:g} s")
        return translate(error, settings=self._settings)

    def close(self) -> None:
        """Drop queued messages, and end the connections and threads of the client."""
        try:
            self._producer.purge()
            with suppress(KafkaException):  # errors of a client that ends
                self._producer.poll(0)
        finally:
            self._producer.close()

    def _next_id(self, flag: Flag) -> bytes:
        return pack(self._producer_id, self._clock.tick(), flag)

    def _serve(self, call: Callable[[float], int], seconds: float) -> None:
        try:
            call(seconds)
        except KafkaException as error:
            raise translate(error.args[0], settings=self._settings) from error

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        message_id: bytes,
        on_delivery: _DeliveryReport,
        *,
        about: Any = None,
        **named: Any,
    ) -> None:
        headers = [(HEADER_NAME, message_id), *(named.pop("headers", None) or ())]
        deadline = Deadline(self._timeout_seconds)
        while True:
            try:
                self._producer.produce(topic, value, headers=headers, on_delivery=on_delivery, **named)
            except BufferError:
                self._serve(self._producer.poll, _FULL_SECONDS)
                if deadline.passed or self._error is not None:
                    raise self._failed() from None
            except KafkaException as error:
                if error.args[0].code() in _NEVER_TAKEN:
                    raise PublishRefused(error.args[0], topic, about) from error
                raise translate(error.args[0], settings=self._settings) from error
            else:
                break
        self._serve(self._producer.poll, 0)

    def _sent(self, error: KafkaError | None, _message: Any) -> None:
        self._error = self._error or error

    def _sent_uncommitted(self, error: KafkaError | None, message: Any, about: Any = None) -> None:
        self._sent(error, message)
        if error is not None and error.code() in _NEVER_TAKEN and self._refused is None:
            self._refused = PublishRefused(error, message.topic(), about)
        if error is None:
            self._pending.add((message.topic(), message.partition()))
