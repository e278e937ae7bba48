"""Readers that record their reads: a reader that follows the topic, and a reader of the whole topic at the end."""

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Self

from confluent_kafka import Consumer, Message, TopicPartition

from harvest_lib.audit.acknowledged import Acknowledged
from harvest_lib.record.header import HEADER_NAME, unpack
from harvest_lib.sequencing.message_id import HEADER_NAME as MESSAGE_ID
from infra.chaos.history.events import Assign, Isolation, Poll, PolledRecord, ReadPosition
from infra.chaos.history.writer import HistoryWriter
from infra.chaos.writing import hash_of

_AT_A_TIME = 500
_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 30


class TopicReader:
    """Reads all partitions of a topic from their beginning in a thread until it is stopped; a context manager."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        history: HistoryWriter,
        *,
        name: str,
        isolation: Isolation,
    ) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"chaos-{name}",
            "isolation.level": f"read_{isolation}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self._topic, self._partitions = topic, partitions
        self._history, self._name, self._isolation = history, name, isolation
        self._acknowledged = self._from_the_beginning()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.seen: set[str] = set()
        """The events that were read."""
        self.has_read = False
        """True if it has read a record since the last `begin`."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def begin(self) -> None:
        """Start to follow the current topic from its beginning."""
        self._stop.clear()
        self.has_read = False
        self._thread = threading.Thread(target=self._run, name=f"chaos-{self._name}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop following. When it returns, all records that were read are in the history. Safe to repeat."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        consumer = self._assigned()
        try:
            while not self._stop.is_set():
                self._note(consumer.consume(_AT_A_TIME, _POLL_SECONDS))
        finally:
            consumer.close()

    def read_all(self) -> None:
        """Read the whole topic once, up to its current end, without a thread. Raises KafkaException if the brokers do
        not answer."""
        consumer = self._assigned()
        try:
            places = [TopicPartition(self._topic, number) for number in range(self._partitions)]
            ends = {each.partition: consumer.get_watermark_offsets(each, _ANSWER_SECONDS)[1] for each in places}
            while any(max(0, each.offset) < ends[each.partition] for each in consumer.position(places)):
                self._note(consumer.consume(_AT_A_TIME, _POLL_SECONDS))
        finally:
            consumer.close()

    def _from_the_beginning(self) -> Acknowledged[PolledRecord]:
        return Acknowledged({"bootstrap.servers": self._settings["bootstrap.servers"]}, _record)

    def _assigned(self) -> Consumer:
        self._acknowledged = self._from_the_beginning()
        consumer = Consumer(self._settings)
        places = [TopicPartition(self._topic, number, 0) for number in range(self._partitions)]
        consumer.assign(places)
        positions = tuple(ReadPosition(topic=self._topic, partition=each.partition, offset=0) for each in places)
        self._history.append(Assign(type="ok", process=self._name, partitions=positions))
        return consumer

    def _note(self, messages: Iterable[Message]) -> None:
        records = tuple(chain.from_iterable(self._seen(message) for message in messages if message.error() is None))
        if records:
            self.seen.update(record.event for record in records)
            self.has_read = True
            self._history.append(Poll(type="ok", process=self._name, isolation=self._isolation, records=records))

    def _seen(self, message: Message) -> Iterable[PolledRecord]:
        """Return the records that count as read after this message. Sequenced records wait for an acknowledgement."""
        record = _record(message)
        if self._isolation == "uncommitted":
            return (record,)
        message_id = dict(message.headers() or []).get(MESSAGE_ID)
        place, known_id = (record.topic, record.partition), message_id if isinstance(message_id, bytes) else None
        return self._acknowledged.take(record, place, record.offset, known_id)


def _record(message: Message) -> PolledRecord:
    value = message.value() or b""
    said = {}
    with suppress(ValueError):
        said = json.loads(value)
    stamped = dict(message.headers() or []).get(HEADER_NAME)
    leader_id, outbox_id = unpack(stamped) if isinstance(stamped, bytes) else (None, None)
    key = message.key()
    return PolledRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        event=said.get("event", "not ours"),
        id=outbox_id,
        key=key.decode() if isinstance(key, bytes) else key,
        seq=said.get("seq", 0),
        hash=hash_of(value),
        leader_id=str(leader_id) if leader_id else None,
    )
