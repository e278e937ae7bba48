"""Delivery at least once, through one idempotent producer: a lane.

Promises
- A record is acknowledged when every in-sync replica has it (`acks=all`).
- The producer's own retries neither repeat nor reorder (`enable.idempotence`).
- A record that has not left within the delivery timeout never leaves: it is reported as failed. The timeout is shorter
  than the session timeout, so a process that was frozen long enough for another to be elected finds its queue expired
  when it thaws. librdkafka checks that before it sends, on its own threads, so Python need not run first.
- A record's timestamp is taken before the check that it may still be sent. So where the topic refuses old timestamps
  (`message.timestamp.before.max.ms`), the broker refuses what a frozen leader had already handed to a socket buffer of
  its own, which nothing on this side can take back: see docs/operations.md, "Reject late records at the broker".
- Brokers refuse whole batches. The records of a refused batch are reported as failed, and when they come again
  each is sent alone, *isolated*. One that is refused alone is reported as refused, and nothing else is.
- Settings on which these rest cannot be overridden (see `harvest_lib.config`).

A key's records go to one partition: `partitioner=consistent` hashes as librdkafka's own default does, and therefore as
goharvest does, but does not scatter the empty key.
"""

import enum
import functools
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.errors import DEFAULTS, NEVER_TAKEN, NO_TOPIC, RAISED, is_fatal, may_pass, raised
from harvest_lib.delivery.headers import header_maker
from harvest_lib.delivery.protocol import Failure, Reports
from harvest_lib.delivery.topic_facts import DEFAULT_BATCH_BYTES
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import (
    KafkaProducer,
    KafkaProducerProvider,
    client_settings,
    count_error,
    refused_settings,
)
from harvest_lib.record import Row
from harvest_lib.record.rows import RowPage, RowQueue

_ABANDON_SECONDS = 2.0
"""How long purged records may take to report; it is a local operation."""
_ABANDON_POLL_SECONDS = 0.05
_NO_OFFSET = "reported delivered without an offset: no broker said so (decision 0019)"

BATCH_OVERHEAD_BYTES = 1_000
"""More than a batch of one needs beside the record's own bytes."""

_LONGEST_CHARACTER_BYTES = 4

ANY_PARTITION = -1

_FEW_RECORDS = 64


class Went(enum.Enum):
    """How far handing rows over went."""

    WHOLLY = "all are with the producer"
    UNTIL_FULL = "the producer's queue is full"
    UNTIL_TOLD = "sending has to stop for now"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """`kafka` are the user's producer settings, secrets in clear; `send_buffer` counts records."""

    kafka: Mapping[str, object] = field(repr=False)
    delivery_timeout_seconds: float
    record_header: bool = True
    send_buffer: int = 10
    producer_provider: KafkaProducerProvider = Producer


class AtLeastOnce:
    """`Delivery` without transactions. Raises ConfigError for a setting that librdkafka does not take."""

    _halts = False
    """Whether one failure ends the sending."""
    _gave_up = False
    """Whether what is purged had waited for as long as it may."""

    def __init__(self, settings: LaneSettings, topics: Topics | None = None) -> None:
        self._settings = settings
        self._topics = topics or Topics(settings.kafka)
        self._batch_bytes = DEFAULT_BATCH_BYTES
        self._queue: deque[Row] = deque()  # taken from the loop, and not yet by the producer
        # id -> when the producer took it, in boot seconds, and what; or the page that it was in
        self._in_flight: dict[int, tuple[float, Row | RowPage]] = {}
        self._to_isolate: set[int] = set()
        self._isolated: Row | None = None
        self._headers_of = header_maker(None)
        # Made now, so that a setting that librdkafka refuses is refused before anything starts.
        self._producer: KafkaProducer | None = self._make_producer()
        self._dead = False  # librdkafka calls some errors fatal: the producer never sends again
        self._reports = Reports()
        self._well: set[str] = set()  # topics that have taken records since the last poll, while one is in trouble

    def begin(self, leader_id: UUID) -> None:
        self._headers_of = header_maker(leader_id if self._settings.record_header else None)
        if self._dead:
            self._replace()
        if self._producer is None:
            self._producer = self._make_producer()

    def send(self, rows: RowQueue, may_send: Callable[[], bool]) -> None:
        if not self._fits():
            return
        if not self._queue or self._produce(self._queue, may_send) is Went.WHOLLY:
            went = self._produce_all(rows, may_send)
            if went is Went.UNTIL_FULL:
                left = rows.rows
                while left and len(self._queue) < self._settings.send_buffer:
                    self._queue.append(left.popleft())

    def poll(self, timeout_seconds: float) -> Reports:
        if (producer := self._producer) is None:
            time.sleep(timeout_seconds)  # as long as a report would be waited for
        else:
            self._serve(lambda: self._listen(producer, timeout_seconds))
            self._hear(producer)
        reports, self._reports = self._reports, Reports()
        if self._well:
            self._topics.well(self._well - {each.row[1] for each in reports.failed})
            self._well.clear()
        return reports

    def purge(self) -> None:
        """Begin to let nothing more leave; `abandon` follows."""
        if self._producer is not None:
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def abandon(self) -> Reports:
        self._discard()
        return self.poll(0)

    def close(self) -> None:
        self.abandon()

    @property
    def takes(self) -> bool:
        return True

    @property
    def outstanding(self) -> int:
        """Return how many records the producer has taken and not reported."""
        return len(self._in_flight)

    @property
    def is_busy(self) -> bool:
        """Tell whether anything waits here: with the producer, for it, or to be reported."""
        return bool(self._in_flight or self._queue or self._reports.failed or self._reports.acknowledged)

    def _fits(self) -> bool:
        """Tell whether the producer's batches are small enough; with the next producer they are, and this one is
        replaced once it has nothing to do."""
        if self._producer is None:
            raise RuntimeError("send before begin")
        if self._topics.smallest_limit >= self._batch_bytes:
            return True
        if not self._in_flight:
            self._renew()
        return not self._in_flight

    def _listen(self, producer: KafkaProducer, timeout_seconds: float) -> int:
        few = 0 < len(self._in_flight) <= _FEW_RECORDS and timeout_seconds > 0
        # A flush does not linger: the last few are better off alone than waiting for company that does not come.
        return producer.flush(timeout_seconds) if few else producer.poll(timeout_seconds)

    def _hear(self, producer: KafkaProducer) -> None:
        """Find out what has acked, after `producer` was polled: here every record has a callback for that."""

    def _own_settings(self) -> dict[str, object]:
        return {"message.timeout.ms": int(self._settings.delivery_timeout_seconds * 1000)}

    def _produce_all(self, rows: RowQueue, may_send: Callable[[], bool]) -> Went:
        """Hand over what the producer takes of `rows`, and tell how far that went."""
        return self._produce(rows.rows, may_send)

    def _produce(self, rows: deque[Row], may_send: Callable[[], bool]) -> Went:
        """Hand over what the producer takes of `rows`, and tell how far that went."""
        assert self._producer is not None  # noqa: S101 - `send` has checked
        # This runs for every record: names are bound once, and arguments go by position (topic, value, key, partition,
        # callback, its other name, timestamp, headers), which together halves the time it takes.
        produce, headers_of, report = self._producer.produce, self._headers_of, self._report
        partial, clock, in_flight, now = functools.partial, time.time, self._in_flight, boot_seconds()
        to_isolate, large = self._to_isolate, self._large
        while rows:
            timestamp_ms = int(clock() * 1000)
            if not may_send():
                return Went.UNTIL_TOLD
            row = rows[0]
            record_id, topic, key, value, names, contents = row
            if to_isolate or self._isolated or (value is not None and len(value) > large):
                if in_flight and (self._isolated or self._needs_isolation(row)):
                    return Went.UNTIL_TOLD  # it waits until all others have acked, and they until it has
                self._isolated = row if self._needs_isolation(row) else None
            try:
                headers = headers_of(record_id, names, contents)
                produce(topic, value, key, ANY_PARTITION, partial(report, row), None, timestamp_ms, headers)
            except BufferError:
                return Went.UNTIL_FULL
            except (KafkaException, ValueError, TypeError) as error:
                rows.popleft()
                self._isolated = None
                self._fail(row, error)
                if self._halts:
                    return Went.UNTIL_TOLD
            else:
                rows.popleft()
                in_flight[record_id] = now, row
        return Went.WHOLLY

    @property
    def _large(self) -> int:
        """Return the length of a value beyond which its record may be too large for company."""
        return self._batch_bytes // _LONGEST_CHARACTER_BYTES - BATCH_OVERHEAD_BYTES

    def _needs_isolation(self, row: Row) -> bool:
        if row[0] in self._to_isolate:
            return True
        _, topic, key, value, names, contents = row
        texts = (key, value, *names, *contents)
        size = sum(len(text if isinstance(text, bytes) else text.encode()) for text in texts if text)
        size += BATCH_OVERHEAD_BYTES
        return size > self._topics.limit(topic)

    def _fail(self, row: Row, error: Exception) -> None:
        """Note a record that the producer did not take: a refusal, unless the client itself is the trouble."""
        if not isinstance(error, KafkaException):
            self._reports.failed.append(Failure(row=row, reason=str(error), refused=True))
            return
        reason: KafkaError = error.args[0]
        self._learn_from(reason)
        self._reports.failed.append(Failure(row=row, reason=reason.str(), refused=reason.code() in NEVER_TAKEN))

    def _report(self, row: Row, error: KafkaError | None, message: Message) -> None:
        if self._in_flight.pop(row[0], None) is None:
            return  # given up on
        if error is not None:
            self._failed(row, error)
        elif message.offset() is None:
            self._reports.failed.append(Failure(row=row, reason=_NO_OFFSET))
        else:
            self._reports.acknowledged.append(row[0])
            if self._topics.in_trouble:
                self._well.add(row[1])
        if row is self._isolated:
            self._isolated = None
            self._to_isolate.discard(row[0])

    def _failed(self, row: Row, error: KafkaError) -> None:
        self._learn_from(error)
        if may_pass(error, gave_up=self._gave_up):
            self._topics.blame(row[1], error.str())
        refused = error.code() in NEVER_TAKEN
        if refused and row is not self._isolated:  # the batch was; who is to blame shows when each is sent alone
            refused = False
            self._to_isolate.add(row[0])
        self._reports.failed.append(Failure(row=row, reason=error.str(), refused=refused))

    def _serve(self, call: Callable[[], int | None]) -> int:
        """Have callbacks served by a call of the producer's, which raises what is fatal instead of reporting it."""
        try:
            return call() or 0
        except RAISED as error:
            self._learn_from(raised(error))
            return self.outstanding

    def _learn_from(self, error: KafkaError) -> None:
        self._dead = self._dead or is_fatal(error)
        if error.code() in NEVER_TAKEN or error.code() in NO_TOPIC:
            self._topics.forget()  # it has changed since we asked
        count_error(error)

    def _replace(self) -> None:
        """Discard a producer that is of no use any more, once what it has on the wire has acked or had its time."""
        if (producer := self._producer) is not None and self._in_flight:
            self._serve(lambda: producer.flush(self._settings.delivery_timeout_seconds))
        self._discard()
        self._dead = False

    def _renew(self) -> None:
        """Go on with another producer; what waits here goes on waiting."""
        queue, self._queue = self._queue, deque()
        self._replace()
        self._queue = queue
        self._producer = self._make_producer()

    def _discard(self) -> None:
        """Let nothing more leave; reports of what was outstanding are kept for the next poll."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Only once the queue is empty: close() would send what is left.
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            # By polls: a flush goes on with reports after what is fatal was raised, and the next one is lost with it.
            deadline = Deadline(_ABANDON_SECONDS)
            while self._in_flight and not deadline.passed:
                self._serve(lambda: producer.poll(_ABANDON_POLL_SECONDS))
                self._hear(producer)
            if self._in_flight:
                producer.purge(in_queue=True, in_flight=True, blocking=True)
            self._close_producer(producer)
        self._reports.failed.extend(Failure(row=row, reason="no report came") for row in self._rows_in_flight())
        self._in_flight.clear()
        self._reports.failed.extend(Failure(row=row, reason="never left") for row in self._queue)
        self._queue.clear()
        self._isolated = None

    def _make_producer(self) -> KafkaProducer:
        self._batch_bytes = min(self._topics.smallest_limit, DEFAULT_BATCH_BYTES)
        own = {
            "acks": "all",
            "allow.auto.create.topics": False,
            "enable.idempotence": True,
            **self._own_settings(),
        }
        user = {**DEFAULTS, **self._settings.kafka}
        if self._batch_bytes < int(str(user.get("batch.size", DEFAULT_BATCH_BYTES))):
            own["batch.size"] = self._batch_bytes
        with refused_settings():
            return self._produced_by(client_settings(user, **own))

    def _produced_by(self, settings: dict[str, Any]) -> KafkaProducer:
        producer: KafkaProducer = self._settings.producer_provider(settings)
        return producer

    def _close_producer(self, producer: KafkaProducer) -> None:
        self._serve(producer.close)

    def _rows_in_flight(self) -> list[Row]:
        """Return what is in flight, row by row."""
        found: dict[int, Row] = {}
        for record_id, (_, held) in self._in_flight.items():
            if isinstance(held, RowPage):
                if record_id not in found:
                    found.update((row[0], row) for row in held)
            else:
                found[record_id] = held
        return [found[record_id] for record_id in self._in_flight]
