"""Reads topics of Kafka once: each partition from its beginning to the end that it had when the audit began.

With isolation `read_committed`, the audit first waits until no transaction before these ends is open, because a client
gets committed records only up to the first open transaction.

Ends are offsets, not records: transaction markers, aborted transactions and compaction leave offsets without a record.
So a partition is complete when a record at or past its end arrives, or the broker reports the end of the partition.
Memory is limited in bytes: by the client's queue, and by the size of a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Literal

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ClientError

from harvest_lib.audit.acknowledged import Acknowledged
from harvest_lib.audit.records import ObservedRecord, content_of
from harvest_lib.errors import KafkaError, TopicMissing
from harvest_lib.kafka_client import LastError, client_settings, log_range, refused_settings, translate
from harvest_lib.kafka_offsets.open_transactions import settled_ends
from harvest_lib.record.header import HEADER_NAME, headers_of, split
from harvest_lib.sequencing.message_id import HEADER_NAME as MESSAGE_ID

Isolation = Literal["read_committed", "read_uncommitted"]

_REACH_TIMEOUT_SECONDS = 8.0
_SILENCE_TIMEOUT_SECONDS = 20.0
_OPEN_SECONDS = 30.0
"""Maximum wait for open transactions of other producers. A transaction that stays open for longer is an error."""
_BATCH_RECORDS = 2_000
_BATCH_BYTES = 8 * 1024 * 1024
_QUEUE_KIB = 8 * 1024
_FETCH_BYTES = 256 * 1024

_INT64 = range(-(2**63), 2**63)


def read_topics(
    settings: Mapping[str, object],
    topics: Sequence[str],
    *,
    isolation: Isolation = "read_committed",
    id_header: str | None = None,
) -> Iterator[list[ObservedRecord]]:
    """Yield the records of `topics` in batches. Records of a partition are in the order of its log.

    `settings` are librdkafka's, including `bootstrap.servers`. A record's id is the outbox id in the record's header
    `harvest`. If `id_header` is given, the id is the integer, as text, in the header of that name. With isolation
    `read_committed`, a record with a message id of `harvest_lib.consume` is only yielded if it is acknowledged. Raises
    KafkaUnavailable (after about 8 s if no broker answers), KafkaAccessDenied, TopicMissing, TransactionOpen (a
    transaction stays open, so that records behind it cannot be read, though they may be committed), or ConfigError for
    a setting.
    """
    said = LastError()
    consumer = _consumer(settings, isolation, said)
    try:
        ranges = _ranges(consumer, topics)
        ends = {place: high for place, (_, high) in ranges.items()}
        if isolation == "read_committed":
            ends = settled_ends(settings, ends, patience_seconds=_OPEN_SECONDS)
        ends = {place: end for place, end in ends.items() if end > ranges[place][0]}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in ends])
        acknowledged = Acknowledged(settings, lambda message: _observe(message, id_header)[0])
        yield from _read(consumer, ends, id_header, acknowledged if isolation == "read_committed" else None)
    except KafkaException as error:
        raise _translate(error.args[0], said, settings) from error
    finally:
        consumer.close()


def committed_ends(settings: Mapping[str, object], topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the current end of each partition for readers of committed records: the first open transaction, or the end
    of the log. Raises the errors of `read_topics`."""
    said = LastError()
    consumer = _consumer(settings, "read_committed", said)
    try:
        return {place: end for place, (_, end) in _ranges(consumer, topics).items()}
    except KafkaException as error:
        raise _translate(error.args[0], said, settings) from error
    finally:
        consumer.close()


def _consumer(settings: Mapping[str, object], isolation: Isolation, said: LastError) -> Consumer:
    with refused_settings():
        return Consumer(
            client_settings(
                settings,
                **{
                    "group.id": "harvest-audit",  # the client requires a group; no offset is ever committed for it
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": isolation,
                    "allow.auto.create.topics": False,
                    "queued.min.messages": _BATCH_RECORDS,  # per partition; each message has an overhead of 1 KB
                    "queued.max.messages.kbytes": _QUEUE_KIB,
                    "fetch.queue.backoff.ms": 5,  # with the default 1000, 340,000 records took 70 s instead of 3
                    "max.partition.fetch.bytes": _FETCH_BYTES,  # compressed; decompressed it may be much more
                    "error_cb": said,
                },
            )
        )


def _ranges(consumer: Consumer, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first offset and the end of each partition. The end depends on the client's isolation."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    deadline = monotonic() + _REACH_TIMEOUT_SECONDS
    for topic in dict.fromkeys(topics):
        metadata = consumer.list_topics(topic, timeout=max(0.1, deadline - monotonic())).topics[topic]
        if metadata.error is not None and metadata.error.code() == ClientError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(
                f"the topic {topic!r} does not exist",
                evidence=metadata.error.str(),
                next_step="name a topic that the harvester delivers to with --topic",
            )
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        for partition in metadata.partitions:
            found[topic, partition] = log_range(consumer, topic, partition, timeout_seconds=_REACH_TIMEOUT_SECONDS)
    return found


def _read(
    consumer: Consumer,
    ends: Mapping[tuple[str, int], int],
    id_header: str | None,
    acknowledged: Acknowledged[ObservedRecord] | None = None,
) -> Iterator[list[ObservedRecord]]:
    unfinished = set(ends)
    batch_records = 10
    heard = monotonic()
    while unfinished:
        messages: list[Any] = consumer.consume(batch_records, timeout=0.2)  # typed as if any field could be missing
        if messages:
            heard = monotonic()
        elif monotonic() - heard > _SILENCE_TIMEOUT_SECONDS:
            raise KafkaException(ClientError(ClientError._TIMED_OUT, "nothing came before the log's end"))
        records: list[ObservedRecord] = []
        size_bytes = 0
        for message in messages:
            place = message.topic(), message.partition()
            error = message.error()
            if error is not None:
                if error.code() == ClientError.GROUP_AUTHORIZATION_FAILED:
                    continue  # the client looks up the coordinator of its group, which it does not need
                if error.code() != ClientError._PARTITION_EOF:
                    raise KafkaException(error)
                _finish(consumer, unfinished, place)
                continue
            offset = message.offset()
            end = ends[place]
            if offset < end:
                record, message_id = _observe(message, id_header)
                if message_id is None or acknowledged is None:
                    records.append(record)
                else:
                    records.extend(acknowledged.take(record, place, record.offset, message_id))
                size_bytes += len(message)
            if offset >= end - 1:
                _finish(consumer, unfinished, place)
        if records:
            yield records
            heard = monotonic()  # the time that the caller took does not count as silence
            mean_bytes = size_bytes / len(messages)
            batch_records = max(1, min(_BATCH_RECORDS, batch_records * 4, int(_BATCH_BYTES / (mean_bytes + 1))))


def _finish(consumer: Consumer, unfinished: set[tuple[str, int]], place: tuple[str, int]) -> None:
    """Stop fetching a completely read partition, so that new records of other producers do not delay the audit."""
    if place in unfinished:
        unfinished.discard(place)
        consumer.pause([TopicPartition(*place)])


def _observe(message: Any, id_header: str | None) -> tuple[ObservedRecord, bytes | None]:
    """Return two values: the observed record, and its message id of `harvest_lib.consume` (None without a message
    id)."""
    record_id: int | None = None
    leader: bytes | None = None
    message_id: bytes | None = None
    for name, value in headers_of(message) or ():
        if name == HEADER_NAME and value is not None:
            try:
                leader, outbox_id = split(value)
            except ValueError:  # another program's header of the same name
                continue
            if id_header is None:
                record_id = outbox_id
        elif name == id_header:
            record_id = _integer(value)
        elif name == MESSAGE_ID and message_id is None:  # the first header of this name counts
            message_id = value or b""
    place = message.topic(), message.partition(), message.offset()
    content = content_of(message.value()) if record_id is not None else None
    return ObservedRecord(*place, message.timestamp()[1], message.key(), record_id, leader, content), message_id


def _integer(text: bytes | None) -> int | None:
    try:
        number = int(text or b"")
    except ValueError:
        return None
    return number if number in _INT64 else None


def _translate(error: ClientError, said: LastError, settings: Mapping[str, object]) -> KafkaError:
    if error.code() in (ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE):
        return KafkaError(
            "the log was cut while it was read",
            evidence=error.str(),
            next_step="run the audit again; if it repeats, check the topic's retention",
        )
    return translate(said.denied or error, settings=settings, said=said.text)
