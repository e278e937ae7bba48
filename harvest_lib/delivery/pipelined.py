"""Delivery at least once with any number of records of a key on the way.

Promises
- What `AtLeastOnce` promises of acknowledgements, retries, timestamps and refusals.
- No gaps: when a record fails, no later one of its partition is in Kafka before it comes again
  (`enable.gapless.guarantee`, and no `message.timeout.ms`: with one, records 0-49, 150-199, 50-199 were seen).
- The first failure halts the delivery. What is queued is thrown away, what is on the wire is waited for, and only when
  nothing is outstanding any more are the failures reported, all together. So all of them are marked again, in order.
- A record that has not acked within the delivery timeout halts it as well; then what is on the wire is given up.

Records go in *rounds*: all that is there is handed over, and it has acked when nothing is outstanding any more. That
spares each record a callback, which costs as much as sending it. A round that fails, fails as a whole. Then records go
one by one for a while, each with a callback, so that the one to blame is found.

What it does not promise: after a failure, or under the next leader, a *run* of a key's records may come again, R0 R1 R2
R0 R1 R2, where the barrier allows R0 R1 R1 R2 at most. And as nothing in its queue expires, a leader that thaws after a
freeze may send what it had queued; see docs/operations.md, "Reject late records at the broker".
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Message

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.at_least_once import ANY_PARTITION, BATCH_OVERHEAD_BYTES, AtLeastOnce, LaneSettings, Went
from harvest_lib.delivery.errors import ONE_AT_A_TIME, may_pass
from harvest_lib.delivery.protocol import Failure, Reports
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer
from harvest_lib.native import NativeRows, NativeSender, close_with_sender, make_with_sender
from harvest_lib.record import Row
from harvest_lib.record.header import prefix
from harvest_lib.record.rows import RowQueue

_SLICE = 100
"""So many records are handed over between two looks at whether that may go on."""

_LEAST_SINGLY = 1_000
"""So many records at least go one by one after a round that failed."""


class Pipelined(AtLeastOnce):
    """`Delivery` that keeps order per partition, not per key in flight."""

    _halts = True

    def __init__(self, settings: LaneSettings, topics: Topics | None = None) -> None:
        self._singly = 0  # so many records go one by one before the next round
        self._by_rounds = True  # what the producer was made for
        self._error: KafkaError | None = None  # of the round: the first
        self._failures: list[Failure] = []  # kept back until nothing is outstanding
        self._is_told = False  # that it halted
        self._give_up: Deadline | None = None
        """Set while halted: until then what is on the wire is waited for."""
        self._sender: NativeSender | None = None  # of a producer for rounds
        self._stamp: bytes | None = None
        super().__init__(settings, topics)

    def begin(self, leader_id: UUID) -> None:
        self._stamp = prefix(leader_id) if self._settings.record_header else None
        if self._give_up is not None and self._in_flight:
            return  # another lane is the reason; this one tells why it halted when nothing is outstanding any more
        self._is_told = False
        if self._give_up is not None:
            self._give_up = None
            self._dead = True
        super().begin(leader_id)

    @property
    def takes(self) -> bool:
        return self._give_up is None and not (self._by_rounds and self._in_flight)

    def send(self, rows: RowQueue, may_send: Callable[[], bool]) -> None:
        if not self.takes:
            return
        if self._by_rounds is bool(self._singly):
            if self._in_flight:
                return  # the other way needs another producer; this one is replaced once it has nothing to do
            self._renew()
        super().send(rows, may_send)

    def poll(self, timeout_seconds: float) -> Reports:
        reports = super().poll(timeout_seconds)
        self._singly = max(0, self._singly - len(reports.acknowledged))
        if self._give_up is None:
            if not reports.failed and self._error is None and not self._is_overdue():
                return reports
            self._halt()
            reports.failed.extend(self._reports.failed)
            reports.acknowledged.extend(self._reports.acknowledged)
            self._reports = Reports()
        elif self._in_flight and self._give_up.passed:
            self._gave_up = True
            self._discard()
            last = super().poll(0)
            reports.acknowledged.extend(last.acknowledged)
            reports.failed.extend(last.failed)
        self._failures.extend(reports.failed)
        reports.failed = []
        if not self._in_flight:  # all may have acked after all: it has to begin again nevertheless
            reports.failed, self._failures = self._failures, []
            reports.halted, self._is_told = not self._is_told, True
        return reports

    def abandon(self) -> Reports:
        self._give_up = self._give_up or Deadline(0)
        self._discard()
        reports = self.poll(0)
        reports.halted = False  # it begins again, or not at all
        return reports

    # -- by rounds

    def _produce_all(self, rows: RowQueue, may_send: Callable[[], bool]) -> Went:
        went = Went.WHOLLY
        while rows and went is Went.WHOLLY:
            if isinstance(page := rows.page, NativeRows) and self._goes_natively(page):
                went = self._hand_over(rows, page, may_send)
            else:
                went = self._produce(rows.single if rows.single else rows.rows, may_send)
        return went

    def _goes_natively(self, page: NativeRows) -> bool:
        is_small = page.summary.largest + BATCH_OVERHEAD_BYTES <= self._topics.smallest_limit
        return self._sender is not None and is_small  # what is large may have to travel alone

    def _hand_over(self, rows: RowQueue, page: NativeRows, may_send: Callable[[], bool]) -> Went:
        """Hand over a page, which is the next of `rows`."""
        assert self._sender is not None  # noqa: S101 - the caller has checked
        now, went = boot_seconds(), 0
        while went < len(page):
            timestamp_ms = int(time.time() * 1000)
            if not may_send():
                return Went.UNTIL_TOLD
            some = page[went : went + _SLICE]
            count, code = self._sender.send(some, stamp=self._stamp, timestamp_ms=timestamp_ms)
            self._in_flight.update(dict.fromkeys(rows.take(count).ids, (now, page)))
            went += count
            if code == KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own code
                return Went.UNTIL_TOLD
            if code:
                self._singly = max(self._singly, _LEAST_SINGLY)  # then it is reported
                return Went.UNTIL_TOLD
        return Went.WHOLLY

    def _produce(self, rows: deque[Row], may_send: Callable[[], bool]) -> Went:
        if not self._by_rounds:
            return super()._produce(rows, may_send)
        assert self._producer is not None  # noqa: S101 - `send` has checked
        # This runs for every record: arguments go by position (topic, value, key, partition, callback, its other name,
        # timestamp, headers).
        produce, headers_of, in_flight, now = self._producer.produce, self._headers_of, self._in_flight, boot_seconds()
        large = self._large
        while rows:
            timestamp_ms = int(time.time() * 1000)
            if not may_send():
                return Went.UNTIL_TOLD
            for _ in range(min(_SLICE, len(rows))):
                row = rows[0]
                record_id, topic, key, value, names, contents = row
                if value is not None and len(value) > large and self._needs_isolation(row):
                    self._singly = max(self._singly, _LEAST_SINGLY)  # it has to travel alone
                    return Went.UNTIL_TOLD
                try:
                    headers = headers_of(record_id, names, contents)
                    produce(topic, value, key, ANY_PARTITION, None, None, timestamp_ms, headers)
                except BufferError:
                    return Went.UNTIL_FULL
                except (KafkaException, ValueError, TypeError):
                    self._singly = max(self._singly, _LEAST_SINGLY)  # then it is reported
                    return Went.UNTIL_TOLD
                rows.popleft()
                in_flight[record_id] = now, row
        return Went.WHOLLY

    def _listen(self, producer: KafkaProducer, timeout_seconds: float) -> int:
        if self._by_rounds and self._in_flight and timeout_seconds > 0:
            return producer.flush(timeout_seconds)
        return super()._listen(producer, timeout_seconds)

    def _hear(self, producer: KafkaProducer) -> None:
        left = len(producer)  # first: the failures of records that no longer count are there by now
        for error, topic in self._sender.take_failures() if self._sender is not None else ():
            self._hear_of(error, topic)
        if not self._by_rounds or not self._in_flight or left:
            return
        if self._error is None:
            if self._topics.in_trouble:
                self._well.update(row[1] for row in self._rows_in_flight())
            self._reports.acknowledged.extend(self._in_flight)
        else:
            reason = self._error.str()
            self._reports.failed.extend(Failure(row=row, reason=reason) for row in self._rows_in_flight())
        self._in_flight.clear()

    def _hear_of_round(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._hear_of(error, message.topic() if message is not None else None)

    def _hear_of(self, error: KafkaError, topic: str | None) -> None:
        self._learn_from(error)
        if topic and may_pass(error, gave_up=self._gave_up):
            self._topics.blame(topic, error.str())

    def _learn_from(self, error: KafkaError) -> None:
        super()._learn_from(error)
        if self._by_rounds and self._in_flight:
            self._error = self._error or error
            self._singly = max(self._singly, _LEAST_SINGLY, 2 * len(self._in_flight))

    def _make_producer(self) -> KafkaProducer:
        self._by_rounds = not self._singly
        self._error, self._gave_up = None, False
        return super()._make_producer()

    def _produced_by(self, settings: dict[str, Any]) -> KafkaProducer:
        if not self._by_rounds:
            self._sender = None
            return super()._produced_by(settings)
        producer: KafkaProducer
        producer, self._sender = make_with_sender(self._settings.producer_provider, settings)
        return producer

    def _close_producer(self, producer: KafkaProducer) -> None:
        self._serve(lambda: close_with_sender(producer, self._sender))

    def _own_settings(self) -> dict[str, object]:
        settings: dict[str, object] = {**ONE_AT_A_TIME, "enable.gapless.guarantee": True, "message.timeout.ms": 0}
        if self._by_rounds:
            settings |= {"on_delivery": self._hear_of_round, "delivery.report.only.error": True}
        return settings

    def _is_overdue(self) -> bool:
        oldest, _ = next(iter(self._in_flight.values()), (None, None))
        return oldest is not None and boot_seconds() - oldest > self._settings.delivery_timeout_seconds

    def _halt(self) -> None:
        """Throw away what has not left; what has is waited for as long as it may take."""
        oldest, _ = next(iter(self._in_flight.values()), (boot_seconds(), None))
        self._give_up = Deadline(oldest + self._settings.delivery_timeout_seconds - boot_seconds())
        self._reports.failed.extend(Failure(row=row, reason="never left") for row in self._queue)
        self._queue.clear()
        if (producer := self._producer) is not None:
            producer.purge(in_queue=True, in_flight=False, blocking=True)
            self._serve(lambda: producer.poll(0))
