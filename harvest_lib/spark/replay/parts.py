"""One part of a replay: writes the records of some keys to Kafka, sorted by id, under a transactional id of its own.

    fence (init_transactions) ─► progress: the last id that was committed ─► records by id ─► commit, with progress

Promises
- Each record of a part is in Kafka once, for readers of committed records, however often the part is tried. The
  progress is an offset that is committed in the same transaction as the records, and a new writer of the part reads the
  progress only after it has fenced the earlier writer.
- A key's records are all in the same part, so they are in Kafka in the order of their ids.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harvest_lib.clock import Deadline
from harvest_lib.delivery.errors import DEFAULTS, NEVER_TAKEN, RAISED, raised
from harvest_lib.delivery.headers import HeaderMaker, header_maker
from harvest_lib.errors import RecordError
from harvest_lib.kafka_client import client_settings, translate

RESULT = "part int, records bigint, last_id bigint"

_BATCH_RECORDS = 20_000
_BATCH_SECONDS = 20.0
_FULL_SECONDS = 0.1
_TIMEOUT_SECONDS = 60.0
_NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_FENCED_BY = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSettings:
    """Common settings of all parts of a replay. The offsets of the consumer group `group` are the progress. The
    transactional id of a part is `group` with the part's number. `progress_topic` has a partition for each part."""

    kafka: Mapping[str, object]
    topics: Mapping[str, str]
    group: str
    progress_topic: str
    sender: UUID


def write_parts(settings: PartSettings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows that are sorted by part and id. Yield number, count of records and last id of each part."""
    writer: _Writer | None = None
    done: list[tuple[int, int, int]] = []
    try:
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                part, rest = row[0], row[1:]
                if writer is None or writer.part != part:
                    done += _finished(writer)
                    writer = None
                    writer = _Writer(settings, part)
                writer.write(rest)
        done += _finished(writer)
        writer = None
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        said = "another attempt writes this part now" if reason.code() in _FENCED_BY else ""
        raise translate(reason, settings=settings.kafka, said=said) from error
    finally:
        if writer is not None:
            writer.close()
    columns = [list(each) for each in zip(*done, strict=True)] if done else [[], [], []]
    types = pa.int32(), pa.int64(), pa.int64()
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, ["part", "records", "last_id"])


def _finished(writer: "_Writer | None") -> list[tuple[int, int, int]]:
    if writer is None:
        return []
    writer.commit()
    writer.close()
    return [(writer.part, writer.records, writer.last_id)]


class _Writer:
    """The producer of a part, with its transactions and its progress."""

    def __init__(self, settings: PartSettings, part: int) -> None:
        self.part = part
        self.records = 0
        self.last_id = 0
        self._settings = settings
        self._place = TopicPartition(settings.progress_topic, part)
        self._headers_of: HeaderMaker = header_maker(settings.sender)
        self._failure: KafkaError | None = None
        self._open_since: float | None = None
        self._open_records = 0
        own = {
            "transactional.id": f"{settings.group}.{part}",
            "allow.auto.create.topics": False,
            "delivery.report.only.error": True,
            "on_delivery": self._report,
        }
        self._producer = Producer(client_settings({**DEFAULTS, **settings.kafka}, **own))
        self._producer.init_transactions(_TIMEOUT_SECONDS)
        self._consumer = _progress_reader(settings)
        self._done = self._progress()  # every id below is committed

    def write(self, row: Sequence[Any]) -> None:
        """Produce a record unless it is committed already. `row` is id, topic, key, value, header names and header
        values."""
        record_id, topic, key, value, names, contents = row
        self.records += 1
        self.last_id = record_id
        if record_id < self._done:
            return
        if self._open_since is None:
            self._producer.begin_transaction()
            self._open_since = time.monotonic()
        self._produce(record_id, self._settings.topics[topic], key, value, self._headers_of(record_id, names, contents))
        self._open_records += 1
        if self._open_records >= _BATCH_RECORDS or time.monotonic() - self._open_since > _BATCH_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Commit the open transaction, with the progress."""
        if self._open_since is None:
            return
        self._serve(partial(self._producer.flush, _TIMEOUT_SECONDS))
        self._raise_failure()
        place = TopicPartition(self._place.topic, self._place.partition, self.last_id + 1)
        self._producer.send_offsets_to_transaction([place], self._consumer.consumer_group_metadata(), _TIMEOUT_SECONDS)
        self._producer.commit_transaction(_TIMEOUT_SECONDS)
        self._open_since, self._open_records = None, 0

    def close(self) -> None:
        """Close both clients. An open transaction is aborted."""
        self._consumer.close()
        self._producer.purge()
        self._producer.close()

    def _progress(self) -> int:
        deadline = Deadline(_TIMEOUT_SECONDS)
        while True:
            try:
                (found,) = self._consumer.committed([self._place], _TIMEOUT_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET or deadline.passed:
                    raise
                time.sleep(_FULL_SECONDS)
            else:
                if found.error is None:
                    return max(int(found.offset), 0)
                raise KafkaException(found.error)

    def _produce(self, record_id: int, topic: str, key: str, value: Any, headers: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
            except BufferError:
                self._serve(partial(self._producer.poll, _FULL_SECONDS))
            except KafkaException as error:
                if error.args[0].code() not in NEVER_TAKEN:
                    raise
                raise _refused(record_id, topic, error.args[0]) from error
            else:
                self._serve(partial(self._producer.poll, 0))
                break
        self._raise_failure()

    def _serve(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RAISED as error:
            with suppress(*RAISED):
                self._producer.poll(0)  # a delivery report has more details than the error that the call has raised
            self._raise_failure()
            raise KafkaException(raised(error)) from error

    def _report(self, error: KafkaError | None, _message: object) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        if self._failure.code() in NEVER_TAKEN:
            raise _refused(self.last_id, ", ".join(sorted(set(self._settings.topics.values()))), self._failure)
        raise KafkaException(self._failure)


def _progress_reader(settings: PartSettings) -> Consumer:
    # With this isolation level Kafka refuses to return an offset while its transaction is undecided: see `_NOT_YET`.
    own = {"group.id": settings.group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    return Consumer(client_settings(settings.kafka, **own))


def _refused(record_id: int, topic: str, error: KafkaError) -> RecordError:
    return RecordError(
        f"Kafka takes no such record for {topic!r}",
        evidence=f"{error.str()}, at or before the record {record_id}",
        next_step="raise `max.message.bytes` of the topic; then run the replay again, which goes on where it was",
    )
