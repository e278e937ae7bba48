"""Reader of Kafka topics, without a consumer group: the pipeline's commit log stores the offsets.

    NOOP  kafka/TOPIC  {"offsets":{"0":1021,"1":998},"id":"vPeOCWypqUOSepEvx0cbog","last":{"0":[1020,1356999300,"1f…"]}}
                       the next offset of each partition, Kafka's id of the topic, and for each partition what
                       identifies the last record that was read (`LastRead`)

Promises
- Every committed record is read, in the order of its partition. A record is read again only if the commit log does not
  have the NOOP after the record. The reader finds partitions that are added while it runs.
- The stored offsets also advance over offsets without a record: ends of transactions, aborted and compacted records.
- The reader fails, and never skips silently, if retention removed records before they were read, if the topic was
  recreated, if a partition lost its end (even if it has grown again since), or if a record is damaged (checksums are
  checked).
- After the start, the reader waits while no broker answers.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message as Record
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import Deadline, boot_seconds, unix_ms
from harvest_lib.consume.retention import Retained, RetentionWatch
from harvest_lib.errors import AdaptorError, HarvestError, KafkaUnavailable, MessageRefused, PositionLost, TopicMissing
from harvest_lib.kafka_client import (
    KafkaConsumerProvider,
    LastError,
    answer_of,
    client_settings,
    is_refusal,
    log_range,
    refused_settings,
    translate,
)
from harvest_lib.kafka_offsets import Place
from harvest_lib.kafka_offsets.last_reads import BrokersLost, replaced
from harvest_lib.kafka_offsets.open_transactions import OpenTransactionWatch
from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.adaptors.envelope import decode
from harvest_lib.pipeline.adaptors.kafka.options import KafkaReading
from harvest_lib.pipeline.adaptors.kafka.whole_record import Headers, bytes_of, data_of
from harvest_lib.pipeline.bounds import Room
from harvest_lib.pipeline.extended_json import loads
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.record.header import headers_of
from harvest_lib.record.last_read import LastRead

_log = logging.getLogger(__name__)

_UNREADABLE = {
    ClientError._BAD_MSG,
    ClientError._BAD_COMPRESSION,
    ClientError._NOT_IMPLEMENTED,
    ClientError._UNSUPPORTED_FEATURE,
}
"""The client's errors for records that the client cannot decode. The client would fetch such a record for ever, or skip
it."""

_WAIT_SECONDS = 0.2
_GROWTH = 4
_MEMORY = {"queued.max.messages.kbytes": 16_384, "fetch.queue.backoff.ms": 50}
"""Limits of the client's prefetching, unless the option `kafka` sets them. The client itself lowers `fetch.max.bytes`
to the size of the queue, but not below `message.max.bytes`."""
_ANSWER_SECONDS = 10.0
_SECOND_LOOK_SECONDS, _AGAIN_SECONDS = 3.0, 0.2
"""A failed check of the position is repeated every `_AGAIN_SECONDS`, because a broker that has just started may not
know the latest state. The error is raised when the check still fails after `_SECOND_LOOK_SECONDS`."""
_LOOK_SECONDS = 30.0
"""Interval of the search for more partitions."""


class KafkaReader(Reader):
    """`Reader` of Kafka topics."""

    needs_data = False

    def __init__(self, options: KafkaReading, *, provider: KafkaConsumerProvider = Consumer) -> None:
        self._options = options
        self._provider = provider
        self._consumer: Any = None
        self._admin: Any = None
        self._ids: dict[str, str] = {}
        self._last = LastError()
        self._lost = BrokersLost(self._last)
        self._is_back = False
        self._offsets: dict[str, dict[int, int]] = {}
        self._lasts: dict[str, dict[int, LastRead]] = {}
        self._retention = RetentionWatch(options.kafka, self._positions)

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
        for topic in self._options.topics:
            before = last.get(_place(topic))
            kept = before.data if before is not None else {}
            self._offsets[topic] = {int(partition): offset for partition, offset in kept.get("offsets", {}).items()}
            self._ids[topic] = kept.get("id", "")
            self._lasts[topic] = {int(partition): LastRead(*last) for partition, last in kept.get("last", {}).items()}
        consumer = self._consumer = self._make()
        try:
            new = self._begin(consumer, self._options.start)
            yield [self._position(topic, 0) for topic in new]
            look_at = boot_seconds() + _LOOK_SECONDS
            waits = OpenTransactionWatch(consumer)
            while True:
                yield self._batch(consumer)
                if self._is_back or not consumer.assignment():
                    self._is_back = self._lost.is_noted = False
                    consumer.unassign()
                    yield [self._position(topic, 0) for topic in self._look(consumer)]
                waits.look(self._positions())
                if boot_seconds() >= look_at:
                    yield [self._position(topic, 0) for topic in self._look(consumer)]
                    look_at = boot_seconds() + _LOOK_SECONDS
        except KafkaException as error:
            raise self._translated(error.args[0]) from error

    def retained(self) -> Sequence[Retained]:
        return self._retention.seen()

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _positions(self) -> Mapping[Place, int]:
        return {
            (topic, partition): offset
            for topic, offsets in self._offsets.copy().items()
            for partition, offset in offsets.copy().items()
        }

    def _look(self, consumer: Any) -> Sequence[str]:
        """Assign partitions that were added, and return their topics. If no broker answers, the result is empty, and a
        later call finds the partitions."""
        try:
            # All records of a new partition are read, also records that were written before this search.
            return self._begin(consumer, "beginning")
        except (KafkaException, KafkaUnavailable) as error:
            ours = self._translated(error.args[0]) if isinstance(error, KafkaException) else error
            if not isinstance(ours, KafkaUnavailable):
                raise ours from error
            _log.warning("reader_waits", extra={"topics": list(self._offsets), "reason": ours.evidence})
            return ()

    def _begin(self, consumer: Any, start: str) -> Sequence[str]:
        """Assign all partitions, if this is the first assignment or there are new partitions. Return the topics that
        have new partitions. A new partition is read from `start`. Raises PositionLost if a stored offset is not
        valid."""
        is_first = not consumer.assignment()
        found: dict[str, dict[int, int]] = {}
        there: dict[Place, LastRead] = {}
        for topic, offsets in self._offsets.items():
            partitions = self._partitions(consumer, topic)
            is_same = self._require_same(topic)
            if offsets.keys() - partitions:
                partitions = self._partitions_again(consumer, topic, is_same=is_same)
            new = partitions - offsets.keys()
            if new:
                found[topic] = dict(offsets)
            for partition in sorted(partitions if is_first else new):
                low, high = self._range(consumer, topic, partition)
                offset = offsets.get(partition, high if start == "end" else low)
                if not low <= offset <= high:
                    what = "no longer has what was not read yet" if offset < low else "was recreated, or lost its end"
                    raise _lost(
                        f"partition {partition} of {topic!r} {what}",
                        f"it holds {low} to {high}, {offset} is to be read next",
                        wears_off=offset > high,
                    )
                last = self._lasts[topic].get(partition)
                if is_first and last is not None and low <= last.offset < high:
                    there[topic, partition] = last
                if new:
                    found[topic][partition] = offset
        for (topic, partition), evidence in replaced(consumer, self._options.kafka, there).items() if there else ():
            what = f"partition {partition} of {topic!r} lost its end, and has grown again"
            raise _lost(what, evidence, wears_off=True)
        self._offsets.update(found)
        if found or is_first:
            consumer.assign(
                [
                    TopicPartition(topic, partition, offset)
                    for topic, all_ in self._offsets.items()
                    for partition, offset in all_.items()
                ]
            )
        return list(found)

    def _partitions_again(self, consumer: Any, topic: str, *, is_same: bool) -> set[int]:
        """Wait until a topic has all partitions that were read, and return its partitions. A broker that has just come
        back may not know all of them yet.

        After a timeout, raises KafkaUnavailable if the topic has the same id (a topic cannot lose partitions), else
        PositionLost."""
        deadline = Deadline(_SECOND_LOOK_SECONDS)
        while gone := self._offsets[topic].keys() - (partitions := self._partitions(consumer, topic)):
            if deadline.passed and is_same:
                raise KafkaUnavailable(
                    f"a broker does not know all partitions of {topic!r} yet",
                    evidence=f"{sorted(gone)} were read, and the topic's id is the same",
                    next_step="wait until the broker has caught up, and start again",
                )
            if deadline.passed:
                evidence = f"{sorted(gone)} were read, it was recreated"
                raise _lost(f"the topic {topic!r} has lost partitions", evidence, wears_off=True)
            time.sleep(_AGAIN_SECONDS)
        return partitions

    def _range(self, consumer: Any, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset and the end offset of a partition. If the end is before the reader's position, the
        end is queried again for a while, because a leader that was just elected may not know the end yet."""
        deadline = Deadline(_SECOND_LOOK_SECONDS)
        while True:
            low, high = log_range(consumer, topic, partition, timeout_seconds=_ANSWER_SECONDS)
            if self._offsets[topic].get(partition, 0) <= high or deadline.passed:
                return low, high
            time.sleep(_AGAIN_SECONDS)

    def _require_same(self, topic: str) -> bool:
        """Return True if the topic still has the id that it had when it was read. Return False if one of the two ids is
        unknown.

        Raises PositionLost if the topic was recreated, because the stored offsets refer to records of the former
        topic."""
        if self._admin is None:
            self._admin = AdminClient(client_settings(self._options.kafka, error_cb=self._last))
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_SECONDS)[topic]
        try:
            found = str(answer_of(asked, 2 * _ANSWER_SECONDS).topic_id)
        except KafkaException as error:
            _log.info("topic_id_unknown", extra={"topic": topic, "reason": str(error)})
            return False
        before, self._ids[topic] = self._ids[topic], found
        if before and before != found:
            raise _lost(f"the topic {topic!r} was recreated", f"its id was {before}, and is {found}")
        return bool(before)

    def _partitions(self, consumer: Any, topic: str) -> set[int]:
        deadline = Deadline(_ANSWER_SECONDS)
        while True:
            try:
                metadata = consumer.list_topics(topic, timeout=1.0).topics[topic]
            except KafkaException as error:
                consumer.poll(0)
                if self._last.denied or deadline.passed:
                    raise self._translated(self._last.denied or error.args[0]) from error
                continue
            if metadata.error is not None:
                if metadata.error.code() != ClientError.UNKNOWN_TOPIC_OR_PART:
                    raise self._translated(metadata.error)
                raise TopicMissing(
                    f"the topic {topic!r} does not exist",
                    evidence=metadata.error.str(),
                    next_step="create it, or correct `topics`",
                )
            return set(metadata.partitions)

    def _batch(self, consumer: Any) -> Sequence[PipelineMessage]:
        batch: list[PipelineMessage] = []
        touched: dict[str, int] = {}
        newest: dict[Place, Record] = {}
        for record, headers in self._records(consumer):
            if (error := record.error()) is not None:
                if error.code() == ClientError._AUTO_OFFSET_RESET:
                    what = f"a partition of {record.topic()!r} no longer has what was not read yet"
                    raise _lost(what, error.str(), wears_off=True)
                if error.code() == ClientError._PARTITION_EOF:
                    # The offsets up to the end have no records, so that retention can remove them without a loss.
                    offsets, partition = self._offsets[record.topic()], record.partition()
                    if record.offset() > offsets[partition]:
                        offsets[partition] = record.offset()
                        touched.setdefault(record.topic(), unix_ms())
                if error.code() in _UNREADABLE:
                    raise _damaged(record, error)
                if error.fatal() or is_refusal(error) or error.code() == ClientError.UNKNOWN_TOPIC_OR_PART:
                    raise self._translated(error)
                continue  # the client tries again by itself
            message = self._message(record, headers)
            if message is not None:
                batch.append(message)
            self._offsets[record.topic()][record.partition()] = record.offset() + 1
            touched[record.topic()] = _when(record)
            newest[record.topic(), record.partition()] = record
        for (topic, partition), record in newest.items():
            self._lasts[topic][partition] = LastRead.of(record)
        return [*batch, *(self._position(topic, timestamp) for topic, timestamp in touched.items())]

    def _records(self, consumer: Any) -> Iterator[tuple[Any, Headers]]:
        """Yield the records of a batch, with headers. The client limits a request by the number of records, not by
        bytes. So the first request is for one record, and later requests assume that each record is as large as the
        largest record so far."""
        room, count, largest, wait = Room(self._options.batch_rows), 1, 1, _WAIT_SECONDS
        while not room.is_full:
            most, most_bytes = room.left
            records = consumer.consume(min(count, most, max(1, most_bytes // largest)), wait)
            if records and self._lost.is_noted:  # the brokers may have restored an older log in between
                self._is_back = True
                return
            found = [(record, headers_of(record)) for record in records]
            sizes = [bytes_of(*each) for each in found]
            for each, size in zip(found, sizes, strict=True):
                room.take(size)
                yield each
            if not records or any(record.error() is not None for record in records):
                return
            count, largest, wait = count * _GROWTH, max(largest, *sizes), 0.0  # later calls do not wait

    def _message(self, record: Record, headers: Headers) -> PipelineMessage | None:
        topic, value, timestamp = str(record.topic()), record.value(), _when(record)
        if self._options.content == "record":
            return PipelineMessage(Op.INSERT, timestamp, topic, data_of(record, headers))
        try:
            if value is None:
                # A record without value is a delete only under `content: data`; else it makes Kafka drop older records.
                key = loads(record.key() or b"")
                return PipelineMessage(Op.DELETE, timestamp, topic, key) if self._options.content == "data" else None
            return decode(value, self._options.content, timestamp=timestamp, namespace=topic)
        except MessageRefused as error:
            raise MessageRefused(
                f"a record of {topic!r} is no message: {error.cause}",
                evidence=f"partition {record.partition()}, offset {record.offset()}: {error.evidence}",
                next_step=f"name the form of the records with `content` (`record` takes anything); {error.next_step}",
            ) from None

    def _position(self, topic: str, timestamp: int) -> PipelineMessage:
        offsets = {str(partition): offset for partition, offset in sorted(self._offsets[topic].items())}
        lasts = {str(partition): list(last) for partition, last in sorted(self._lasts[topic].items())}
        return PipelineMessage(
            Op.NOOP, timestamp, _place(topic), {"offsets": offsets, "id": self._ids[topic], "last": lasts}
        )

    def _make(self) -> Any:
        own = {
            "group.id": "harvest-pipeline",  # the client requires a group; the reader never joins it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,  # ends of transactions have offsets, and are never returned as records
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "error_cb": self._lost,
        }
        with refused_settings("kafka"):
            return self._provider(client_settings({**_MEMORY, **self._options.kafka}, **own))

    def _translated(self, error: ClientError) -> HarvestError:
        return translate(error, settings=self._options.kafka, said=self._last.text)


def _place(topic: str) -> str:
    return f"kafka/{topic}"


def _when(record: Record) -> int:
    return max(0, record.timestamp()[1])  # -1: no timestamp


def _damaged(record: Record, error: ClientError) -> AdaptorError:
    return AdaptorError(
        f"a record of {record.topic()!r} cannot be read",
        evidence=f"partition {record.partition()}, offset {record.offset()}: {error.str()}",
        next_step="bring the broker's replica in order; or delete the partition's records up to it "
        "(kafka-delete-records.sh), move the pipeline's folder away, and start again",
    )


def _lost(cause: str, evidence: str, *, wears_off: bool = False) -> PositionLost:
    return PositionLost(
        cause,
        wears_off=wears_off,
        evidence=evidence,
        next_step="the records in between are gone from Kafka; to read the rest, move the pipeline's folder away "
        "and start again",
    )
