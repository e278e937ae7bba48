"""Delivery in batches, at least once, in order per partition, through one idempotent producer.

Promises
- A batch is committed when every in-sync replica has all of it (`acks=all`). Records of it may have arrived if it
  failed: after a failure a run of records may repeat, and no gap is left in it.
- The producer's own retries neither repeat nor reorder (`enable.idempotence`).
- Where `expiry_seconds` is set, a record that has not left within that time never leaves. It is shorter than the
  session timeout, so a process that was frozen long enough for another to be elected finds its queue expired when it
  thaws. librdkafka checks that before it sends, on its own threads, so Python need not run first.
- A record's timestamp is then taken before the check that it may still be sent. So where the topic refuses old
  timestamps (`message.timestamp.before.max.ms`), the broker refuses what a frozen leader had already handed to a socket
  buffer of its own, which nothing on this side can take back: see docs/operations.md, "Reject late records at the
  broker".
- Settings on which these rest cannot be overridden (see `harvest_lib.config`).

A key's records go to one partition: `partitioner=consistent` hashes as librdkafka's own default does, and therefore as
goharvest does, but does not scatter the empty key.
"""

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.errors import (
    DEFAULTS,
    NEVER_TAKEN,
    NO_TOPIC,
    ONE_AT_A_TIME,
    PURGED,
    RAISED,
    is_fatal,
    may_pass,
    raised,
)
from harvest_lib.delivery.headers import Headers, header_maker
from harvest_lib.delivery.protocol import BatchCommitted, BatchDeliverySettings, BatchFailed, BatchOutcome
from harvest_lib.delivery.topic_facts import DEFAULT_BATCH_BYTES
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer, client_settings, count_error, refused_settings
from harvest_lib.native import (
    LATE,
    MALFORMED,
    UNCONFIRMED,
    NativeRows,
    NativeSender,
    close_with_sender,
    error_of,
    make_with_sender,
)
from harvest_lib.record import ID, KEY, TOPIC, VALUE, Row
from harvest_lib.record.header import prefix

_LINGER = {"linger.ms": 20}
"""Under a backlog batches grow for so long, as only one request is on the wire; the end of a batch waits for none."""
_ABOUT_TOPICS = NEVER_TAKEN | NO_TOPIC | PURGED | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""Errors that a changed topic may cause. librdkafka purges the records of a transaction without saying why."""
_ANY_PARTITION = -1
_NOW = 0
_FULL_SECONDS = 0.05
_SLICE_SECONDS = 0.1
_ABANDON_SECONDS = 2.0
_WIRE_SECONDS = 1.0
_WHY_SECONDS = 0.5
_ANSWER_SECONDS = 0.005
"""A record that expires is handed over within this time after the question if it may be sent, or it is asked again."""


class PipelinedBatches:
    """`Delivery` without transactions. Raises ConfigError for a setting that librdkafka does not take."""

    _wire_seconds = _WIRE_SECONDS
    """Limit of the wait for records on the wire when the producer is discarded."""
    _native_settings: Mapping[str, object] = MappingProxyType({})
    """Settings that a producer may have in addition where each record's report is received natively."""

    def __init__(self, settings: BatchDeliverySettings, topics: Topics) -> None:
        self._settings = settings
        self._topics = topics
        self._failure: KafkaError | None = None  # of the batch: the first
        self._stopped = self._gave_up = False
        self._is_named = self._is_of_row = False  # the failure: its topic is known, or it is our own; it is a row's
        self._has_expired = False  # a record, while it waited or was on the wire
        self._watched: set[str] = set()  # topics of the batch, where one is in trouble
        # Of records of the batch, each the only one of its key; None if some are unknown.
        self._failed_keys: set[bytes] | None = None
        self._headers_of = header_maker(None)
        self._stamp: bytes | None = None
        self._sender: NativeSender | None = None
        # Made now, so that a setting that librdkafka refuses is refused before anything starts.
        self._producer: KafkaProducer | None = self._make_producer()

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:  # noqa: ARG002 - it fences nobody
        self._headers_of = header_maker(leader_id if self._settings.record_header else None)
        self._stamp = prefix(leader_id) if self._settings.record_header else None
        if self._producer is None or self._failure is not None or self._stopped:
            self._discard()
            self._failure, self._stopped, self._gave_up = None, False, False
            self._is_named = self._is_of_row = False
            self._producer = self._make_producer()
        self._failed_keys = set() if self._settings.expiry_seconds is not None else None
        if self._sender is not None and self._failed_keys is not None:
            self._sender.note_keys()
        self._watched.clear()
        return BatchCommitted()

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        assert self._producer is not None  # noqa: S101 - `begin` comes first
        if self._topics.in_trouble:
            self._watched.update(row[1] for row in rows)
        if isinstance(rows, NativeRows) and self._sender is not None:
            refused = self._hand_over(self._sender, rows, may_send)
        else:
            refused = self._produce(rows, may_send)
        self._serve(functools.partial(self._producer.poll, _NOW))
        return refused

    def _hand_over(self, sender: NativeSender, rows: NativeRows, may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over natively."""
        deadline, refused = None, dict[int, str]()
        while rows and not refused:
            timestamp_ms, until = self._times()
            if not may_send():
                break
            went, code = sender.send(
                rows, stamp=self._stamp, timestamp_ms=timestamp_ms, until=until, **self._next_ids(len(rows))
            )
            rows = rows[went:]
            if code == KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own code
                deadline = Deadline(self._settings.delivery_timeout_seconds) if went or deadline is None else deadline
                if not self._wait_for_room(may_send, deadline):
                    break
            elif code == MALFORMED or (code == LATE and not went):  # however slow the question is, one goes
                refused, rows = self._produce([rows[0]], may_send), rows[1:]
            elif code and code != LATE:
                return self._not_taken(rows[0][ID], error_of(code))
        if rows and not refused:
            self._stopped, self._failed_keys = True, None
        return refused

    def _times(self) -> tuple[int, float]:
        """Return the timestamp in milliseconds of records that are handed over if they may be sent, and the boot
        seconds until which that answer holds, 0 for ever. To be taken before the question, see docs/operations.md,
        "Reject late records"."""
        until = boot_seconds() + _ANSWER_SECONDS if self._settings.expiry_seconds is not None else 0.0
        return int(time.time() * 1000), until

    def _next_ids(self, count: int) -> dict[str, int]:  # noqa: ARG002 - a record has none here
        """Return the arguments from which `NativeSender.send` makes message ids."""
        return {}

    def _produce(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        assert self._producer is not None  # noqa: S101 - `send` has looked
        # This runs for every record: arguments go by position (topic, value, key, partition, callback, its other name,
        # timestamp, headers), and there is no callback: reports of failures come to the producer's own.
        produce, headers_of = self._producer.produce, self._headers_of
        clock, (timestamp, until) = boot_seconds, self._times()
        if not may_send():
            self._stopped, self._failed_keys = True, None
            return {}
        for row in rows:
            if until and clock() >= until:  # a batch may take longer than one that was frozen has
                timestamp, until = self._times()
                if not may_send():
                    self._stopped, self._failed_keys = True, None
                    break
            record_id, topic, key, value, names, contents = row
            try:
                headers = headers_of(record_id, names, contents)
                produce(topic, value, key, _ANY_PARTITION, None, None, timestamp, headers)
            except BufferError:
                if not self._produce_when_there_is_room(row, headers, timestamp, may_send):
                    self._failed_keys = None
                    break
            except (KafkaException, ValueError, TypeError) as error:
                if not isinstance(error, KafkaException):
                    return {record_id: str(error)}
                return self._not_taken(record_id, error.args[0])  # later records of its key may have to stay behind it
        return {}

    def _not_taken(self, record_id: int, error: KafkaError) -> dict[int, str]:
        """Return a record if it is refused permanently; else the batch has failed."""
        if error.code() in NEVER_TAKEN:
            return {record_id: str(error.str())}
        self._is_of_row, self._failed_keys = True, None
        self._failed(error)
        return {}

    def commit(self, _checkpoint: bytes, may_send: Callable[[], bool], /) -> BatchOutcome:
        return self.flush(may_send)

    def abandon(self) -> bool:
        return self._discard()

    @property
    def failed_keys(self) -> Collection[bytes] | None:
        return self._failed_keys

    def close(self) -> None:
        self._discard()

    def _produce_when_there_is_room(
        self, row: Row, headers: Headers, timestamp: int, may_send: Callable[[], bool]
    ) -> bool:
        assert self._producer is not None  # noqa: S101 - `send` has looked
        row_of = row[TOPIC], row[VALUE], row[KEY], _ANY_PARTITION, None, None, timestamp, headers
        return self._when_there_is_room(functools.partial(self._producer.produce, *row_of), may_send)

    def _when_there_is_room(self, produce: Callable[[], object], may_send: Callable[[], bool]) -> bool:
        """Produce, once the producer's queue has room; False if that is over."""
        deadline = Deadline(self._settings.delivery_timeout_seconds)
        while True:
            try:
                produce()
            except BufferError:
                if not self._wait_for_room(may_send, deadline):
                    return False
            else:
                return True

    def _wait_for_room(self, may_send: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait a little for records to leave the producer's queue; False if that is over."""
        assert self._producer is not None  # noqa: S101 - `send` has looked
        if not may_send() or deadline.passed or self._failure is not None:
            self._stopped = True
            return False
        self._serve(functools.partial(self._producer.poll, _FULL_SECONDS))
        return True

    def flush(self, may_send: Callable[[], bool]) -> BatchOutcome:
        """Wait until nothing is outstanding, in slices, so that a term that ends is noticed."""
        assert self._producer is not None  # noqa: S101 - `begin` comes first
        deadline = Deadline(self._settings.delivery_timeout_seconds)
        self._serve(functools.partial(self._producer.poll, _NOW))
        while self._is_waiting():
            if not self._serve(functools.partial(self._producer.flush, _SLICE_SECONDS)):
                break
            if deadline.passed or not may_send():
                self._stopped, self._gave_up = True, deadline.passed
        else:  # a record that no broker has confirmed is no longer outstanding once that is noted: look after that
            self._serve(functools.partial(self._producer.poll, _NOW))
        self._collect_reasons(deadline)
        if self._failure is not None:
            return self._failed_by(self._failure)
        if self._stopped:
            return BatchFailed(reason="not acknowledged in time")
        if self._watched:
            self._topics.well(self._watched)
            self._watched.clear()
        return BatchCommitted()

    def _is_waiting(self) -> bool:
        """Return True if records are outstanding. To flush without any wakes all threads of the client for nothing."""
        return not (self._stopped or self._failure) and self._producer is not None and len(self._producer) > 0

    def _failed_by(self, failure: KafkaError) -> BatchFailed:
        count_error(failure)
        refused = failure.code() in NEVER_TAKEN
        return BatchFailed(
            reason=failure.str(), refused=refused, unnamed=not refused and self._is_of_row and not self._is_named
        )

    def _collect_reasons(self, deadline: Deadline) -> None:
        """Wait for the reports behind an error that is fatal, which says only that the order could not be kept."""
        assert self._producer is not None  # noqa: S101 - there was a batch
        while (failure := self._failure) is not None and is_fatal(failure) and not deadline.passed:
            if self._serve(functools.partial(self._producer.poll, _WHY_SECONDS)) == 0:
                break

    def _attempt(self, call: Callable[[KafkaProducer], object]) -> BatchOutcome:
        """Have the producer do something besides sending rows."""
        assert self._producer is not None  # noqa: S101 - `begin` comes first
        try:
            call(self._producer)
        except KafkaException as error:
            self._failed(error.args[0])
        except BufferError:
            self._stopped = True
        if self._failure is None and not self._stopped:
            return BatchCommitted()
        return self._failed_by(self._failure) if self._failure else BatchFailed(reason="the producer's queue is full")

    def _report(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        if self._failed_keys is not None:
            key = message.key() if message is not None else None
            if key is None:  # an empty key is another one
                self._failed_keys = None
            else:
                self._failed_keys.add(key)
        self._failed_in(message.topic() if message is not None else None, error)

    def _note_native(self, sender: NativeSender) -> None:
        """Note the failures of records that were handed over natively, and their keys. Of one that no broker has
        confirmed it is not known where it is."""
        failures = sender.take_failures()
        if failures and self._failed_keys is not None:
            keys = sender.take_failed_keys()
            if keys is None or any(each.code() == UNCONFIRMED for each, _ in failures):
                self._failed_keys = None
            else:
                self._failed_keys |= keys
        for failure, topic in failures:
            self._failed_in(topic, failure)

    def _failed_in(self, topic: str | None, error: KafkaError) -> None:
        """Note the report of a record."""
        self._is_of_row = True
        self._has_expired = self._has_expired or error.code() == KafkaError._MSG_TIMED_OUT  # noqa: SLF001 - librdkafka's own code
        self._failed(error)
        if error.code() == UNCONFIRMED:
            self._is_named = True  # no record is to blame
        elif topic and may_pass(error, gave_up=self._gave_up):
            self._is_named = True
            self._topics.blame(topic, error.str())

    def _report_own(self, what: str, error: KafkaError | None, _message: object) -> None:
        """As `_report`, of a record of the delivery's own: no record of the batch is to blame."""
        if error is None:
            return
        self._is_named = True
        if error.code() in NEVER_TAKEN:
            error = KafkaError(KafkaError._FAIL, f"{what} was refused: {error.str()}")  # noqa: SLF001 - librdkafka's own code
        self._failed(error)

    def _failed(self, error: KafkaError) -> None:
        # Failures after the first say only that a record was purged, or came after it.
        if self._failure is None or (error.code() in NEVER_TAKEN and self._failure.code() not in NEVER_TAKEN):
            self._failure = error

    def _serve(self, call: Callable[[], int | None]) -> int:
        """Have callbacks served by a call of the producer's, which raises fatal errors instead of reporting them."""
        try:
            return call() or 0
        except RAISED as error:
            self._is_of_row, self._failed_keys = True, None  # if it was of our own, its report says so
            self._failed(raised(error))
            return 0
        finally:
            if self._sender is not None:
                self._note_native(self._sender)

    def _discard(self) -> bool:
        """Let nothing more leave, and ignore its reports; return True if records on the wire may still arrive."""
        producer, self._producer = self._producer, None
        may_arrive = False
        if producer is not None:
            # Only once the queue is empty: close() would send the rest.
            self._serve(functools.partial(producer.purge, in_queue=True, in_flight=False, blocking=True))
            self._serve(functools.partial(producer.flush, self._wire_seconds))
            if may_arrive := len(producer) > 0:
                purge = functools.partial(producer.purge, in_queue=True, in_flight=True, blocking=True)
                self._serve(purge)
                if self._serve(functools.partial(producer.flush, _ABANDON_SECONDS)):
                    self._serve(purge)
            self._close_producer(producer)
        may_arrive, self._has_expired = may_arrive or self._has_expired, False  # it may have been on the wire
        if self._failure is not None and (self._failure.code() in _ABOUT_TOPICS or is_fatal(self._failure)):
            self._topics.forget()
        return may_arrive

    def _close_producer(self, producer: KafkaProducer) -> None:
        """Close a producer whose queue is empty."""
        self._serve(functools.partial(close_with_sender, producer, self._sender))

    def _own_settings(self) -> dict[str, object]:
        if (seconds := self._settings.expiry_seconds) is not None:  # a leader that was frozen finds its queue expired
            return {"message.timeout.ms": int(seconds * 1000)}
        return {"enable.gapless.guarantee": True, "message.timeout.ms": 0}

    def _make_producer(self) -> KafkaProducer:
        user = {**DEFAULTS, **_LINGER, **self._settings.kafka}
        own = {
            "acks": "all",
            "allow.auto.create.topics": False,
            "enable.idempotence": True,
            "on_delivery": self._report,
            "delivery.report.only.error": True,
            **ONE_AT_A_TIME,
            **self._own_settings(),
        }
        largest = min(self._topics.smallest_limit, DEFAULT_BATCH_BYTES)
        if largest < int(str(user.get("batch.size", DEFAULT_BATCH_BYTES))):
            own["batch.size"] = largest
        with refused_settings():
            producer: KafkaProducer
            producer, self._sender = make_with_sender(
                self._settings.producer_provider, client_settings(user, **own), self._native_settings
            )
            return producer
