"""Reads a partition from an offset on: all messages, or committed messages only.

Promises
- Messages are returned in order of their offsets.
- If retention removed messages before they were read, an error is raised. An error is also raised if the log lost its
  end after a position was saved, even if the log has grown past that position since.
- A transaction of any length is read again in batches, so it need not fit in memory.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Any, Final, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from harvest_lib.clock import Deadline
from harvest_lib.errors import CheckpointError, TopicMissing
from harvest_lib.kafka_client import KafkaConsumerProvider, client_settings, log_range, refused_settings, translate
from harvest_lib.kafka_offsets.last_reads import BrokersLost, replaced
from harvest_lib.kafka_offsets.open_transactions import OpenTransactionWatch
from harvest_lib.record.header import headers_of_all
from harvest_lib.record.last_read import LastRead
from harvest_lib.sequencing.batch import Batch, Message, bytes_of
from harvest_lib.sequencing.message_id import HEADER_NAME
from harvest_lib.sequencing.sequencer import Replay, Sequencer

_BATCH_MESSAGES, _BATCH_BYTES = 2_000, 16 * 2**20
_FIRST_MESSAGES = 50
"""Limit of the messages in the first batch. It is small because the size of messages is still unknown."""
QUEUED_KBYTES = 16_384
"""Limit, in kilobytes, of the messages that a client fetches ahead. librdkafka's default is four times as high."""
_ANSWER_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
NOTHING_READY: Final[Sequence[Message]] = ()
"""The group that `read_committed` yields if no message is ready. Any other empty group means only that a batch
committed nothing."""
_HOW_TO_GO_ON = (
    "see which records Kafka lost (an unclean election of a leader, a restored volume), compare the state with the "
    "log, and stop the consumer; NAME is its name, and `consumers` the table of its `PostgresStore`. To continue "
    "there: UPDATE consumers SET checkpoint = checkpoint - 'last' WHERE consumer = 'NAME' AND ROW; to read again from "
    """an offset N instead, SET checkpoint = checkpoint - 'last' || '{"offset": N, "producers": []}'. With a """
    "`SqliteStore`, recreate the recovery log: all is read again, into a new state"
)
_AWAY = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
_READY_SECONDS = 0.1
"""Longest wait for the next message, after which an empty batch is yielded."""

Isolation = Literal["read_committed", "read_uncommitted"]
"""Kafka's own setting: whether messages of Kafka transactions are read only after the commit, or also before the commit
and after an abort."""


def read_uncommitted(
    settings: Mapping[str, object],
    topic: str,
    partition: int,
    *,
    begin: int,
    end: int | None = None,
    isolation: Isolation = "read_committed",
    last: LastRead | None = None,
    reached: Callable[[int], None] | None = None,
    provider: KafkaConsumerProvider = Consumer,
) -> Generator[Sequence[Message], None, None]:
    """Yield all messages of the log from the offset `begin` to before `end` (without `end`: forever), in batches.

    A message's `record` is the Kafka client's. An empty batch means that no message is ready. `last` is the last record
    that was read before `begin`, if known: the log must still have it. After each batch was processed, `reached` is
    called with the offset up to which the log was read; some offsets have no message. With `end`, half a minute without
    a message is an error: a broker is down, or an open Kafka transaction hides further messages. Raises CheckpointError
    if the log does not have the offset `begin` any more, or not yet, or has another record in place of `last`. Also
    raises TopicMissing, KafkaUnavailable and KafkaAccessDenied.
    """
    lost = BrokersLost(observer if callable(observer := settings.get("error_cb")) else None)
    with _client({**settings, "error_cb": lost}, topic, isolation, provider) as client:
        place = TopicPartition(topic, partition, begin)
        try:
            _require(client, place)
            if last is not None:
                _require_same(client, settings, place, last)
        except KafkaException as error:
            raise _translated(error.args[0], settings, place) from error
        yield from _read(client, settings, place, end, reached, last=last, lost=lost)


def read_committed(
    settings: Mapping[str, object],
    topic: str,
    partition: int,
    *,
    sequencer: Sequencer,
    end: int | None = None,
    isolation: Isolation = "read_committed",
    provider: KafkaConsumerProvider = Consumer,
) -> Generator[Iterable[Message], None, None]:
    """Yield committed messages in groups, from the sequencer's position on. A group has all messages of an
    acknowledgement.

    Iterate over each group to its end before the next group. If iteration over a group stops earlier or fails, the
    sequencer cannot be used any more, and the request for the next group raises RuntimeError. The group NOTHING_READY
    means that no message is ready now. Another empty group is yielded after a batch that commits nothing, so that the
    caller gets control. Raises the errors of `read_uncommitted`.
    """

    is_whole, client = True, None

    def again(replay: Replay) -> Iterator[Message]:
        nonlocal is_whole, client
        if client is None:
            client = opened.enter_context(_client(settings, topic, isolation, provider))  # to connect takes long
        place = TopicPartition(topic, partition, replay.begin)
        yield from replay.pick(chain.from_iterable(_read(client, settings, place, replay.end)))
        is_whole = True

    with ExitStack() as opened:
        for batch in read_uncommitted(
            settings,
            topic,
            partition,
            begin=sequencer.offset,
            end=end,
            isolation=isolation,
            last=sequencer.last,
            reached=sequencer.pass_over,
            provider=provider,
        ):
            commits = False
            for found in sequencer.take(batch):
                commits = True
                is_whole = not isinstance(found, Replay)
                yield again(found) if isinstance(found, Replay) else found
                if not is_whole:
                    raise RuntimeError(
                        "a transaction was not read to its end, and the next cannot be read before it is"
                    )
            if not commits:
                yield [] if batch else NOTHING_READY


@contextmanager
def _client(
    settings: Mapping[str, object], topic: str, isolation: Isolation, provider: KafkaConsumerProvider
) -> Iterator[Any]:
    with refused_settings("settings"):
        client = provider(
            client_settings(
                {"queued.max.messages.kbytes": QUEUED_KBYTES, **settings},
                **{
                    "group.id": f"{topic}-reader",  # the client requires a group; no member joins it
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "isolation.level": isolation,
                    "allow.auto.create.topics": False,
                    "fetch.wait.max.ms": 50,
                    "fetch.queue.backoff.ms": 5,  # default 1000, which is how long a full queue would stop the fetching
                },
            )
        )
    try:
        yield client
    finally:
        client.close()


def _read(
    client: Any,
    settings: Mapping[str, object],
    place: TopicPartition,
    end: int | None,
    reached: Callable[[int], None] | None = None,
    *,
    last: LastRead | None = None,
    lost: BrokersLost | None = None,
) -> Iterator[Sequence[Message]]:
    """Yield batches from `place` on. When brokers answer again after all connections were lost, first check that the
    log still has the record that was read last."""
    try:
        while True:
            client.assign([place])
            for batch in _batches(client, place, end, reached, lost):
                if batch.last is not None:
                    last = batch.last
                yield batch
            if lost is None or not lost.is_noted:
                break
            while lost.is_noted:
                lost.is_noted = False
                try:
                    if last is not None:
                        _require_same(client, settings, place, last)
                except KafkaException as error:
                    if error.args[0].code() not in _AWAY:
                        raise
                    lost.is_noted = True
                    yield NOTHING_READY
        client.unassign()  # or more is fetched ahead
    except KafkaException as error:
        raise _translated(error.args[0], settings, place) from error


def _require(consumer: Any, place: TopicPartition) -> None:
    """Raise KafkaException if the partition does not exist. The client itself would report it after half a minute."""
    found = consumer.list_topics(place.topic, _ANSWER_SECONDS).topics[place.topic]
    if found.error is not None or place.partition not in found.partitions:
        raise KafkaException(found.error or KafkaError(KafkaError._UNKNOWN_PARTITION))


def _require_same(client: Any, settings: Mapping[str, object], place: TopicPartition, last: LastRead) -> None:
    """Raise CheckpointError if the log has another record at the offset of `last`, because offsets then mean other
    records."""
    first, end = log_range(client, place.topic, place.partition, timeout_seconds=_ANSWER_SECONDS)
    if not first <= last.offset < end:
        return  # retention has removed the record, or the log ends before it, which a read reports
    for evidence in replaced(client, settings, {(place.topic, place.partition): last}).values():
        row = f"topic = '{place.topic}' AND partition = {place.partition}"
        raise CheckpointError(
            f"the log of {place.topic!r}, partition {place.partition}, lost its end since it was read, and has grown "
            f"again: not all of it that is before offset {place.offset} was read",
            evidence=evidence,
            next_step=_HOW_TO_GO_ON.replace("ROW", row),
        )


def _batches(
    consumer: Any,
    place: TopicPartition,
    end: int | None,
    reached: Callable[[int], None] | None,
    lost: BrokersLost | None,
) -> Iterator[Batch]:
    """Yield batches up to `end`. If a message comes after all brokers were lost, put the offset of the next message to
    read into `place` and return early."""
    position, deadline, is_idle = place.offset, Deadline(_SILENCE_SECONDS), True
    waits, most = OpenTransactionWatch(consumer), min(_FIRST_MESSAGES, _BATCH_MESSAGES)
    while end is None or position < end:
        if end is not None and deadline.passed:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"nothing came from offset {position} on"))
        found = consumer.consume(most, 0)
        if not found and is_idle:
            found = consumer.consume(1, _READY_SECONDS)
        if found and lost is not None and lost.is_noted:
            place.offset = position
            return
        is_idle = not found
        if is_idle and end is None:
            waits.look({(place.topic, place.partition): position})
        errors = [record.error() for record in found]
        if any(errors):
            good = []
            for record, error in zip(found, errors, strict=True):
                if error is None:
                    good.append(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, record.offset())
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no ACL is needed: no member joins a group
                    raise KafkaException(error)
        else:
            good = found
        if good:
            position = max(position, good[-1].offset() + 1)
            each_bytes = max(1, bytes_of(good) // len(good))
            most = max(1, min(_BATCH_MESSAGES, _BATCH_BYTES // each_bytes))
        batch = Batch(_offsets_of(good), _ids_of(good), good, LastRead.of(good[-1]) if good else None)
        yield batch if end is None or position <= end else batch[: bisect_left(batch.offsets, end)]
        if found:
            deadline = Deadline(_SILENCE_SECONDS)  # the caller may have taken long to process the batch
        if reached is not None:
            reached(position if end is None else min(position, end))  # messages behind the end were not taken


def _offsets_of(records: Sequence[Any]) -> list[int] | range:
    """Return the offsets of records, which are ascending, as a range if there is no gap."""
    if records:
        first, after = records[0].offset(), records[-1].offset() + 1
        if after - first == len(records):  # no gap, which only transactions of Kafka and compaction leave
            return range(first, after)
    return [record.offset() for record in records]


def _ids_of(records: Sequence[Any]) -> list[bytes | None]:
    found = headers_of_all(records)
    with suppress(TypeError, ValueError):
        ids = [value for ((name, value),) in found if name == HEADER_NAME]  # most have only this header
        b"".join(ids)  # none is None
        if len(ids) == len(found):
            return ids
    return [_id_of(headers) for headers in found]


def _id_of(headers: Any) -> bytes | None:
    """Return the first message id among the headers of a record; None if there is no id. If the id is not bytes, return
    empty bytes, which no reader accepts as an id."""
    for name, value in headers or ():
        if name == HEADER_NAME:
            return value if isinstance(value, bytes) else b""
    return None


def _translated(error: KafkaError, settings: Mapping[str, object], place: TopicPartition) -> Exception:
    where = f"{place.topic!r}, partition {place.partition}"
    if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
        return CheckpointError(
            f"the log of {where} does not have offset {place.offset}, the next offset to read",
            evidence=error.str(),
            next_step="retention has removed unread records, or the topic was recreated: lengthen "
            "`retention.ms`, and choose the offset to continue from",
        )
    if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}:
        return TopicMissing(
            f"there is no {where}",
            evidence=error.str(),
            next_step="create the topic, or name another",
        )
    return translate(error, settings=settings)
