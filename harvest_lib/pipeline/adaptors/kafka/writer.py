"""Topics of Kafka, written by an idempotent producer.

A record's key says which row it is of: `{"id":1}`, the fields that `key` names, or `{"namespace":"public.flights"}`
where it names none; in a topic of several namespaces `{"namespace":"public.flights","key":{"id":1}}`.

Promises
- `write` returns once all in-sync replicas have all records: each has its offset, and one request is on the wire per
  broker, since the client takes a record for delivered when it sees a later one acknowledged (docs/decisions/0019).
- Records of one key are in one partition, in order and without gaps: what fails is never overtaken by a later record
  (`enable.gapless.guarantee`, no `message.timeout.ms`). After a failure a run of them may come again.
- Nothing of a batch that failed is sent any more afterwards: the producer is thrown away with what it has queued.
- Topics are never made by accident.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer
from confluent_kafka import Message as Record

from harvest_lib.clock import Deadline
from harvest_lib.config.kafka_settings import IN_FLIGHT
from harvest_lib.errors import AdaptorError, HarvestError, KafkaUnavailable, MessageRefused, TopicMissing
from harvest_lib.kafka_client import (
    REACH_TIMEOUT_SECONDS,
    KafkaProducer,
    KafkaProducerProvider,
    LastError,
    client_settings,
    create_topic,
    refused_settings,
    topic_missing,
    topic_partitions,
    translate,
)
from harvest_lib.pipeline.adaptors.envelope import encode
from harvest_lib.pipeline.adaptors.kafka.options import NAMESPACE, KafkaWriting
from harvest_lib.pipeline.extended_json import dumps
from harvest_lib.pipeline.message import Message, Op
from harvest_lib.record import is_legal_topic

_WAIT_SECONDS = 0.1
_ANY_PARTITION = -1
_REFUSED = {
    ClientError.MSG_SIZE_TOO_LARGE,
    ClientError.INVALID_RECORD,
    ClientError.INVALID_MSG,
    ClientError.POLICY_VIOLATION,
    ClientError.RECORD_LIST_TOO_LARGE,
    ClientError.INVALID_TIMESTAMP,
}
_REASONS = tuple(ClientError(code).str() for code in _REFUSED)
"""What a fatal error says of them: it has a code of its own."""


class _Record(NamedTuple):
    message: Message
    topic: str
    key: bytes
    value: bytes | None


class KafkaWriter:
    """`Writer` to topics."""

    def __init__(self, options: KafkaWriting, *, provider: KafkaProducerProvider = Producer) -> None:
        self._options = options
        self._provider = provider
        self._producer: KafkaProducer | None = None
        self._last = LastError()
        self._topics: dict[str, str] = {}

    def write(self, messages: Sequence[Message]) -> None:
        """See `Writer`."""
        records = [self._record(each) for each in messages if each.op is not Op.NOOP]
        producer = self._producer or self._make()
        try:
            self._deliver(producer, records)
        except BaseException:
            self._discard()
            raise

    def close(self) -> None:
        """See `Writer`."""
        self._discard()

    def _deliver(self, producer: KafkaProducer, records: Sequence[_Record]) -> None:
        deadline = Deadline(self._options.delivery_timeout_seconds)
        failures: list[tuple[Message, ClientError | None]] = []
        waiting = deque(records)
        try:
            while waiting and not failures and not deadline.passed:
                if self._produce(producer, waiting[0], failures):
                    waiting.popleft()
                else:
                    producer.poll(_WAIT_SECONDS)
            while not failures and len(producer) and not deadline.passed:
                producer.flush(_WAIT_SECONDS)
        except KafkaException as error:  # after one that broke the order no other is taken
            raise self._failed([each.message for each in records], error.args[0]) from error
        if failures:
            # One that is refused takes along those in its batch, and those behind it.
            message, reason = next((each for each in failures if each[1] and each[1].code() in _REFUSED), failures[0])
            raise self._failed([message], reason) if reason is not None else self._inferred(message)
        if waiting or len(producer):
            said = f"; {self._last.text}" if self._last.text else ""
            raise KafkaUnavailable(
                "Kafka did not take a batch in time",
                evidence=f"{len(records)} records, {self._options.delivery_timeout_seconds:g} s{said}",
                next_step="check the brokers, `min.insync.replicas`, and `delivery_timeout`",
            )

    def _produce(
        self, producer: KafkaProducer, record: _Record, failures: list[tuple[Message, ClientError | None]]
    ) -> bool:
        """Hand a record over; False while the producer has no room for it."""

        def report(error: ClientError | None, acked: Record) -> None:
            if error is not None or acked.offset() is None:
                failures.append((record.message, error))

        timestamp = max(0, record.message.timestamp)
        try:
            producer.produce(record.topic, record.value, record.key, _ANY_PARTITION, report, None, timestamp)
        except BufferError:
            return False
        except KafkaException as error:
            raise self._failed([record.message], error.args[0]) from error
        return True

    def _record(self, message: Message) -> _Record:
        namespace = message.namespace
        fields = self._options.key.get(namespace)
        if self._options.content == "data" and (fields is None or message.op is Op.COMMAND):
            raise MessageRefused(
                f"message {message.offset} cannot be written by its data alone",
                evidence=f"a command of {namespace}" if fields else f"`key` has nothing for the namespace {namespace}",
                next_step="name its fields in `key`, write envelopes, or drop such messages in a transform",
            )
        named = {name: message.data.get(name) for name in fields} if fields and message.op is not Op.COMMAND else {}
        if None in named.values():
            missing = ", ".join(name for name, value in named.items() if value is None)
            raise MessageRefused(
                f"message {message.offset} has no key",
                evidence=f"{missing} is missing or null, namespace {namespace}",
                next_step="correct `key`, or the transform that took it away",
            )
        key: Mapping[str, Any] = {"namespace": namespace}
        if named:
            key = named if NAMESPACE in self._options.topic else {"namespace": namespace, "key": named}
        is_tombstone = self._options.content == "data" and message.op is Op.DELETE
        value = None if is_tombstone else encode(message, self._options.content)
        return _Record(message, self._topic(namespace), dumps(key), value)

    def _topic(self, namespace: str) -> str:
        """Return the topic of a namespace, once it is known to be there."""
        topic = self._topics.get(namespace)
        if topic is None:
            topic = self._options.topic.replace(NAMESPACE, namespace)
            if not is_legal_topic(topic):
                raise AdaptorError(
                    f"the namespace {namespace!r} gives no name that Kafka takes for a topic",
                    evidence=topic,
                    next_step="name it with the transform `route`, or give `topic` a name without {namespace}",
                )
            self._require(topic)
            self._topics[namespace] = topic
        return topic

    def _require(self, topic: str) -> None:
        settings, partitions = self._options.kafka, self._options.partitions
        seconds = min(REACH_TIMEOUT_SECONDS, self._options.delivery_timeout_seconds)
        if topic in topic_partitions(settings, timeout_seconds=seconds):
            return
        if partitions is None:
            raise TopicMissing(
                f"the topic {topic!r} does not exist",
                evidence="it is not in the brokers' list",
                next_step=f"{topic_missing(topic, partitions=1).next_step}; or have it made: `partitions`",
            )
        create_topic(settings, topic, partitions=partitions, config={})

    def _failed(self, messages: Sequence[Message], error: ClientError) -> HarvestError:
        first, last = messages[0].offset, messages[-1].offset
        if error.code() in _REFUSED or (error.fatal() and any(each in error.str() for each in _REASONS)):
            which = f"message {first}" if first == last else f"one of {first} to {last}"
            return MessageRefused(
                f"Kafka does not take {which}",
                evidence=f"{error.str()}, namespace {messages[0].namespace}",
                next_step=f"show it with `harvest pipeline show {first}..{last}`; change the topic's "
                "`max.message.bytes` (and `message.max.bytes` here) or `message.timestamp.after.max.ms`, or it in a "
                "transform; or acknowledge it without sending: `harvest pipeline ack`",
            )
        if error.code() in {ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC}:  # noqa: SLF001 - its name
            self._topics.clear()
            return topic_missing(self._options.topic.replace(NAMESPACE, messages[0].namespace), partitions=1)
        return translate(error, settings=self._options.kafka, said=self._last.text)

    def _inferred(self, message: Message) -> HarvestError:
        return KafkaUnavailable(
            "a record was reported delivered that no broker has confirmed",
            evidence=f"message {message.offset} has no offset in the topic",
            next_step="run the pipeline again: it is sent once more",
        )

    def _make(self) -> KafkaProducer:
        own: Mapping[str, Any] = {
            IN_FLIGHT: 1,
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
            "error_cb": self._last,
            "queue.buffering.max.ms": 5,
        }
        with refused_settings():
            made: KafkaProducer = self._provider(client_settings(self._options.kafka, **own))
        self._producer = made
        return made

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            # That what was on the wire has no known end is no news: why it is let go is said already.
            with suppress(KafkaException):
                producer.poll(0)
            with suppress(KafkaException):
                producer.close()
