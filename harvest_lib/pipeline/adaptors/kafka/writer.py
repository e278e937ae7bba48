"""Writer to Kafka topics, by an idempotent producer. The module `records` defines the record of a message.

Promises
- `write` returns when all in-sync replicas have all records, and each record has an offset. Each broker gets a single
  request at a time: with several requests, the client may report a lost record as delivered because a later record was
  acknowledged (docs/decisions/0019).
- Records of a key are in one partition, in order and without gaps: a later record never overtakes a failed record
  (`enable.gapless.guarantee`, no `message.timeout.ms`). After a failure, consecutive records may be written twice.
- After a batch has failed, no record of the batch is sent any more: the producer is discarded with its queue.
- A topic is created only if the option `partitions` is set.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer
from confluent_kafka import Message as Report

from harvest_lib.clock import Deadline
from harvest_lib.config.kafka_settings import IN_FLIGHT
from harvest_lib.delivery.errors import NO_TOPIC, PURGED, RAISED, is_fatal, raised
from harvest_lib.errors import AdaptorError, HarvestError, KafkaUnavailable, TopicMissing
from harvest_lib.kafka_client import (
    REACH_TIMEOUT_SECONDS,
    KafkaProducer,
    KafkaProducerProvider,
    LastError,
    client_settings,
    refused_settings,
    topic_partitions,
    translate,
)
from harvest_lib.kafka_topics import create_topic, topic_missing
from harvest_lib.native import UNCONFIRMED, NativeRecords, NativeSender, close_with_sender, error_of, make_with_sender
from harvest_lib.pipeline.adaptors.kafka.options import NAMESPACE, KafkaWriting
from harvest_lib.pipeline.adaptors.kafka.records import handed_over, namespaces_and_record_times, records_of
from harvest_lib.pipeline.adaptors.refusal import refusal
from harvest_lib.pipeline.logged_messages import LoggedMessages, namespaces_and_times, without_noops
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.record import is_legal_topic

_WAIT_SECONDS = 0.1
_WHY_SECONDS = 0.5
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
"""The texts of the errors in `_REFUSED`. A fatal error has another code, and contains the text of its cause."""


_REMEDY = (
    "change the topic's `max.message.bytes` (and `message.max.bytes` here) or `message.timestamp.after.max.ms`, or it "
    "in a transform"
)

_Record = tuple[str, bytes, bytes | None, int]
"""Topic, key, value, timestamp."""


class _Failure(NamedTuple):
    """A failure of a record: the error, the record's topic if known, and the record's index in the batch if known."""

    error: ClientError
    topic: str = ""
    place: int | None = None


def _is_refusal(error: ClientError) -> bool:
    return error.code() in _REFUSED or (error.fatal() and any(each in error.str() for each in _REASONS))


def _rank(failure: _Failure) -> int:
    """Return how well an error explains the cause: 0 for the error of a refused record, 3 for the least helpful."""
    error, topic, _ = failure
    if error.code() in _REFUSED:
        return 0
    if _is_refusal(error):
        return 1
    return 2 if topic and error.code() not in PURGED else 3


def _hand_over(sender: NativeSender, records: Sequence[NativeRecords], failures: list[_Failure]) -> Iterator[None]:
    """Queue records in the producer by native code. Yields whenever the queue is full, and after a failure.

    A record that the client refuses is added to `failures`; the native code collects failures of delivery."""
    before = 0
    for some in records:
        went = 0
        while went < len(some):
            count, code = sender.produce(some, went)
            went += count
            if code == ClientError._QUEUE_FULL:
                yield
            elif code:
                topic = some.targets[some.kinds[went]].topic.decode()
                failures.append(_not_taken(error_of(code), topic, before + went))
                yield
                return
        before += len(some)


def _produce(producer: KafkaProducer, records: Sequence[_Record], failures: list[_Failure]) -> Iterator[None]:
    """Queue records in the producer from Python. Yields whenever the queue is full, and after a failure. Failures are
    added to `failures`."""

    def report(error: ClientError | None, acked: Report) -> None:
        if error is None and acked.offset() is None:
            error = error_of(UNCONFIRMED)
        if error is not None:
            failures.append(_Failure(error, acked.topic() or ""))

    for place, (topic, key, value, timestamp) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, _ANY_PARTITION, report, None, timestamp)
                break
            except BufferError:
                yield
            except KafkaException as error:
                failures.append(_not_taken(error.args[0], topic, place))
                yield
                return


def _not_taken(error: ClientError, topic: str, place: int) -> _Failure:
    """Return the failure of a record that the client did not accept. After a fatal error the client accepts no record,
    so that the failure has no topic and no index."""
    return _Failure(error) if is_fatal(error) else _Failure(error, topic, place)


class KafkaWriter:
    """`Writer` to Kafka topics."""

    def __init__(self, options: KafkaWriting, *, provider: KafkaProducerProvider = Producer) -> None:
        self._options = options
        self._provider = provider
        self._producer: KafkaProducer | None = None
        self._sender: NativeSender | None = None
        self._last = LastError()
        self._topics: dict[str, str] = {}

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        written = without_noops(messages)
        producer = self._producer or self._make()
        failures: list[_Failure] = []
        handing_over = self._natively(written, failures) or self._by_python(producer, written, failures)
        self._deliver(producer, written, handing_over, failures)

    def _natively(self, messages: Sequence[PipelineMessage], failures: list[_Failure]) -> Iterator[None] | None:
        """Return the iterator that queues messages by native code; None if they have to be queued from Python."""
        if self._sender is None or not isinstance(messages, LoggedMessages):
            return None
        topics = {name: self._topic(name) for name in dict.fromkeys(key.decode() for _, _, key in messages.kinds)}
        records = handed_over(messages, self._options, topics)
        return None if records is None else _hand_over(self._sender, records, failures)

    def _by_python(
        self, producer: KafkaProducer, messages: Sequence[PipelineMessage], failures: list[_Failure]
    ) -> Iterator[None]:
        records = records_of(messages, self._options)
        places = namespaces_and_record_times(messages)
        topics = {namespace: self._topic(namespace) for namespace in dict.fromkeys([name for name, _ in places])}
        ready = [
            (topics[namespace], key, value, timestamp)
            for (namespace, timestamp), (key, value) in zip(places, records, strict=True)
        ]
        return _produce(producer, ready, failures)

    def _deliver(
        self,
        producer: KafkaProducer,
        messages: Sequence[PipelineMessage],
        handing_over: Iterator[None],
        failures: list[_Failure],
    ) -> None:
        """Wait until all messages are delivered; close the producer on any error.

        `handing_over` queues the records, yields whenever the producer's queue is full, and adds failures to
        `failures`."""
        try:
            self._await_delivery(producer, messages, handing_over, failures)
        except BaseException:
            self.close()
            raise

    def _await_delivery(
        self,
        producer: KafkaProducer,
        messages: Sequence[PipelineMessage],
        handing_over: Iterator[None],
        failures: list[_Failure],
    ) -> None:
        deadline = Deadline(self._options.delivery_timeout_seconds)
        left = 1
        for _ in handing_over:
            self._serve(partial(producer.poll, _WAIT_SECONDS), failures)
            if failures or deadline.passed:
                break
        else:
            while left and not failures and not deadline.passed:
                left = len(producer)  # before serving: a record that is not counted any more has reported its outcome
                self._serve(partial(producer.flush, _WAIT_SECONDS) if left else partial(producer.poll, 0), failures)
        if failures:
            self._await_reason(producer, failures)
            raise self._failed(messages, min(failures, key=_rank))
        if left:
            raise self._late(len(messages))

    def _await_reason(self, producer: KafkaProducer, failures: list[_Failure]) -> None:
        """Wait briefly for the error that explains the cause. A refused record also causes errors of the other records
        of its batch, of the records after it, and of the producer. Any of these errors may be reported first."""
        deadline = Deadline(_WHY_SECONDS)
        while _rank(min(failures, key=_rank)) and len(producer) and not deadline.passed:
            self._serve(partial(producer.flush, _WAIT_SECONDS), failures)

    def _serve(self, call: Callable[[], object], failures: list[_Failure]) -> None:
        """Process delivery reports by `call`, a method of the producer, and add errors to `failures`. Fatal errors,
        which the method raises, are added as well."""
        try:
            call()
        except RAISED as error:  # after an error that would break the order, the producer accepts no record
            failures.append(_Failure(raised(error)))
        if self._sender is not None:
            failures += [_Failure(error, topic) for error, topic in self._sender.take_failures()]

    def _late(self, count: int) -> HarvestError:
        said = f"; {self._last.text}" if self._last.text else ""
        return KafkaUnavailable(
            "Kafka did not take a batch in time",
            evidence=f"{count} records, {self._options.delivery_timeout_seconds:g} s{said}",
            next_step="check the brokers, `min.insync.replicas`, and `delivery_timeout`",
        )

    def _topic(self, namespace: str) -> str:
        """Return the topic of a namespace, after a check that the topic exists (or was created)."""
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

    def _failed(self, messages: Sequence[PipelineMessage], failure: _Failure) -> HarvestError:
        error, topic, _ = failure
        if _is_refusal(error):
            evidence = f"{error.str()}, topic {topic}" if topic else error.str()
            return refusal("Kafka", self._suspects(messages, failure), evidence=evidence, remedy=_REMEDY)
        if error.code() in NO_TOPIC:
            self._topics.clear()
            return topic_missing(topic, partitions=1)
        if error.code() == UNCONFIRMED:
            return KafkaUnavailable(
                "a record was reported delivered that no broker has confirmed",
                evidence=f"it has no offset in the topic {topic}",
                next_step="run the pipeline again: it is sent once more",
            )
        return translate(error, settings=self._options.kafka, said=self._last.text)

    def _suspects(self, messages: Sequence[PipelineMessage], failure: _Failure) -> Sequence[int]:
        """Return the offsets of the messages that may have caused the failure. If the client refused a record, its
        message is the cause. If Kafka refused a batch, only the topic is known."""
        if failure.place is not None:
            return [messages[failure.place].offset]
        places = [
            place
            for place, (namespace, _) in enumerate(namespaces_and_times(messages))
            if not failure.topic or self._topics[namespace] == failure.topic
        ]
        return [messages[place].offset for place in places]

    def _make(self) -> KafkaProducer:
        own: Mapping[str, Any] = {
            IN_FLIGHT: 1,
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
            "error_cb": self._last,
            "queue.buffering.max.ms": 5,
        }
        with refused_settings("kafka"):
            made: KafkaProducer
            made, self._sender = make_with_sender(self._provider, client_settings(self._options.kafka, **own))
        self._producer = made
        return made

    def close(self) -> None:
        """Discard the producer with its queue."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            # Errors of records with an unknown outcome are ignored: the cause was reported before this call.
            with suppress(KafkaException):
                producer.poll(0)
            with suppress(KafkaException):
                close_with_sender(producer, self._sender)
