"""Producer of batches: a client of librdkafka, replaced after a failed batch. C code feeds the client if available.

Promises
- Records leave in the order in which they are handed over. The client's own retries neither repeat nor reorder records
  (`enable.idempotence`, `acks=all`). The user cannot override the settings behind this (see `harvest_lib.config`).
- If `expiry_seconds` is set, a record that has not left within that time never leaves. `expiry_seconds` is shorter than
  the session timeout. So if a process is frozen until another process is elected, its queued records have expired when
  it resumes. librdkafka checks the expiry before it sends, on its own threads, so Python need not run first.
- A record's timestamp is taken before the check that the record may be sent. So a topic that refuses old timestamps
  (`message.timestamp.before.max.ms`) also refuses records that were in a socket buffer while a leader was frozen. This
  process cannot take such records back: see docs/operations.md, "Reject late records at the broker".
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.client import ProducerKind, is_own, make_client
from harvest_lib.delivery.errors import NEVER_TAKEN, RAISED, is_fatal, raised
from harvest_lib.delivery.failures import Failures
from harvest_lib.delivery.headers import header_maker
from harvest_lib.delivery.message_ids import MessageIds
from harvest_lib.delivery.protocol import BatchCommitted, BatchDeliverySettings, BatchFailed, BatchOutcome
from harvest_lib.delivery.topics import Topics
from harvest_lib.kafka_client import KafkaProducer, count_error
from harvest_lib.native import LATE, MALFORMED, NativeRows, NativeSender, close_with_sender, error_of
from harvest_lib.record import ID, TOPIC, Row
from harvest_lib.record.header import prefix

_ANY_PARTITION = -1
_NOW = 0
_FULL_SECONDS = 0.05
_SLICE_SECONDS = 0.1
_ABANDON_SECONDS = 2.0
_WHY_SECONDS = 0.5
_ANSWER_SECONDS = 0.005
"""Validity of a check that records may be sent, for records that can expire. Then the check is repeated."""


class BatchProducer:
    """Producer of a delivery. Raises ConfigError for a setting that librdkafka does not take."""

    def __init__(self, settings: BatchDeliverySettings, topics: Topics, kind: ProducerKind) -> None:
        self.failures = Failures(topics, fences=kind.fences)
        self._settings = settings
        self._topics = topics
        self._kind = kind
        self._watched: set[str] = set()  # topics of the batch, while any topic is in trouble
        self._headers_of = header_maker(None)
        self._is_watched = is_own(settings.producer_provider)
        self._stamp: bytes | None = None
        self._ids: MessageIds | None = None
        self._sender: NativeSender | None = None
        # Made now, so that a setting that librdkafka refuses is refused before anything starts.
        self._client: KafkaProducer | None = self._make_client()

    def begin(self, leader_id: UUID, ids: MessageIds | None = None) -> None:
        """Prepare to send under a leader id. Discard an open batch. With `ids`, each record gets the next id."""
        headers_of = header_maker(leader_id if self._settings.record_header else None)
        self._headers_of = headers_of if ids is None else ids.with_headers(headers_of)
        self._stamp = prefix(leader_id) if self._settings.record_header else None
        self._ids = ids
        if self._client is None or self.failures.any:
            self.discard()
            self.failures.clear()
            self._client = self._make_client()
        self.failures.failed_keys = set() if self._settings.expiry_seconds is not None else None
        if self._sender is not None and self.failures.failed_keys is not None:
            self._sender.note_keys()
        self._watched.clear()

    def hand_over(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over to the client; see `Delivery.send`."""
        client = self._ready()
        if self._topics.in_trouble:
            self._watched.update(row[TOPIC] for row in rows)
        if isinstance(rows, NativeRows) and self._sender is not None:
            refused = self._hand_natively(self._sender, rows, may_send)
        else:
            refused = self._produce(rows, may_send)
        self._serve(functools.partial(client.poll, _NOW))
        return refused

    def send_own(
        self, record: Sequence[Any], report: Callable[[KafkaError | None, Any], None], may_send: Callable[[], bool]
    ) -> None:
        """Hand over a record that the delivery itself made: its topic, value, key and partition. Wait while records of
        the batch fill the client's queue."""
        produce = functools.partial(self._ready().produce, *record, on_delivery=report)
        self.attempt(lambda _: self._when_there_is_room(produce, may_send))

    def attempt(self, call: Callable[[KafkaProducer], object]) -> BatchOutcome:
        """Make a call of the client that does not hand over rows. Return the outcome of the batch so far."""
        try:
            call(self._ready())
        except KafkaException as error:
            self.failures.add(error.args[0])
        except BufferError:
            self.failures.stop(knows_keys=True)
            if self.failures.first is None:
                return BatchFailed(reason="the producer's queue is full")
        return self._outcome()

    def flush(
        self, may_send: Callable[[], bool], explain: Callable[[KafkaProducer], None] | None = None
    ) -> BatchOutcome:
        """Wait until no record is outstanding, and return the outcome. The wait is in slices, so that the end of a term
        is noticed. `explain` may find the reason for a failure that was reported without a reason."""
        client, failures = self._ready(), self.failures
        deadline = Deadline(self._settings.delivery_timeout_seconds)
        self._serve(functools.partial(client.poll, _NOW))
        while not failures.any and len(client) > 0:  # a flush of nothing wakes all threads of the client
            if not self._serve(functools.partial(client.flush, _SLICE_SECONDS)):
                break
            if deadline.passed or not may_send():
                failures.stop(knows_keys=True, gave_up=deadline.passed)
        else:  # a record is outstanding until it is noted as unconfirmed: poll after that
            self._serve(functools.partial(client.poll, _NOW))
        self._await_reasons(deadline)
        if explain is not None:
            explain(client)
        outcome = self._outcome()
        if self._watched and isinstance(outcome, BatchCommitted):
            self._topics.well(self._watched)
            self._watched.clear()
        return outcome

    def flush_for(self, seconds: float, is_waiting: Callable[[], bool]) -> None:
        """Wait while `is_waiting` returns True, for at most `seconds`; return early if the batch has failed."""
        deadline = Deadline(seconds)
        while is_waiting() and self.failures.first is None and self._client is not None and not deadline.passed:
            self._serve(functools.partial(self._client.flush, _SLICE_SECONDS))

    def take_places(self) -> list[tuple[str, int]]:
        """Return the topics and partitions in which natively handed-over records arrived since the last call."""
        return self._sender.take_places() if self._sender is not None else []

    def discard(self) -> bool:
        """Discard the client, so that no further record leaves. Return True if records on the wire may still arrive."""
        client, self._client = self._client, None
        may_arrive = False
        if client is not None:
            # The queue is emptied first: close() would send the queued records.
            self._serve(functools.partial(client.purge, in_queue=True, in_flight=False, blocking=True))
            self._serve(functools.partial(client.flush, self._kind.wire_seconds))
            if may_arrive := len(client) > 0:
                purge = functools.partial(client.purge, in_queue=True, in_flight=True, blocking=True)
                self._serve(purge)
                if self._serve(functools.partial(client.flush, _ABANDON_SECONDS)):
                    self._serve(purge)
            if self._kind.close is not None:
                self._kind.close(client, self._sender)
            else:
                self._serve(functools.partial(close_with_sender, client, self._sender))
        has_expired = self.failures.take_expired()  # the expired record may have been on the wire
        if self.failures.are_about_topics:
            self._topics.ask_again()
        return may_arrive or has_expired

    # -- handing over

    def _hand_natively(self, sender: NativeSender, rows: NativeRows, may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over natively; see `Delivery.send`."""
        deadline, refused = None, dict[int, str]()
        while rows and not refused:
            timestamp_ms, until = self._times()
            if not may_send():
                break
            ids = self._ids.native(len(rows)) if self._ids is not None else {}
            went, code = sender.send(rows, stamp=self._stamp, timestamp_ms=timestamp_ms, until=until, **ids)
            rows = rows[went:]
            if code == KafkaError._QUEUE_FULL:
                deadline = Deadline(self._settings.delivery_timeout_seconds) if went or deadline is None else deadline
                if not self._wait_for_room(may_send, deadline):
                    break
            elif code == MALFORMED or (code == LATE and not went):  # send at least one row per check
                refused, rows = self._produce([rows[0]], may_send), rows[1:]
            elif code and code != LATE:
                return self._not_taken(rows[0][ID], error_of(code))
        if rows and not refused:
            self.failures.stop()
        return refused

    def _times(self) -> tuple[int, float]:
        """Return two values for the next records: their timestamp in milliseconds, and the time in boot seconds until
        which the next check that they may be sent is valid (0: always). Call this before that check, see
        docs/operations.md, "Reject late records"."""
        until = boot_seconds() + _ANSWER_SECONDS if self._settings.expiry_seconds is not None else 0.0
        return int(time.time() * 1000), until

    def _produce(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        # This runs for every record. So arguments are positional (topic, value, key, partition, callback, its other
        # name, timestamp, headers), and no callback is passed: the client's own callback gets the failures.
        produce = self._produce_watched if self._is_watched else self._ready().produce
        headers_of = self._headers_of
        clock, (timestamp, until) = boot_seconds, self._times()
        if not may_send():
            self.failures.stop()
            return {}
        for row in rows:
            if until and clock() >= until:  # a long batch may outlast the check
                timestamp, until = self._times()
                if not may_send():
                    self.failures.stop()
                    break
            record_id, topic, key, value, names, contents = row
            try:
                headers = headers_of(record_id, names, contents)
                produce(topic, value, key, _ANY_PARTITION, None, None, timestamp, headers)
            except BufferError:
                again = functools.partial(produce, topic, value, key, _ANY_PARTITION, None, None, timestamp, headers)
                if not self._when_there_is_room(again, may_send):
                    break
            except (KafkaException, ValueError, TypeError) as error:
                if not isinstance(error, KafkaException):
                    return {record_id: str(error)}
                return self._not_taken(record_id, error.args[0])  # later records of its key may have to stay behind it
        return {}

    def _produce_watched(self, topic: str, value: Any, key: Any, partition: int, *rest: Any) -> None:
        """Produce through a user's own client, with a callback for the report of each record."""
        _, _, timestamp, headers = rest
        self._ready().produce(
            topic, value, key, partition, on_delivery=self._report, timestamp=timestamp, headers=headers
        )

    def _not_taken(self, record_id: int, error: KafkaError) -> dict[int, str]:
        """Return the record's id with the reason, if the client refuses the record permanently. After any other error,
        note that the batch has failed, and return an empty dictionary."""
        if error.code() in NEVER_TAKEN:
            return {record_id: str(error.str())}
        self.failures.add_of_row(error)
        return {}

    def _when_there_is_room(self, produce: Callable[[], object], may_send: Callable[[], bool]) -> bool:
        """Produce a record once the client's queue has room. Return False if the batch ends before that."""
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
        """Wait a little for records to leave the client's queue. Return False, without a wait, if the batch ends."""
        if not may_send() or deadline.passed or self.failures.first is not None:
            self.failures.stop()
            return False
        self._serve(functools.partial(self._ready().poll, _FULL_SECONDS))
        return True

    # -- reports

    def _outcome(self) -> BatchOutcome:
        if self.failures.first is not None:
            count_error(self.failures.first)
        return self.failures.outcome()

    def _await_reasons(self, deadline: Deadline) -> None:
        """Wait, after a fatal error, for the reports that explain it. The error itself states only that the order of
        records could not be preserved."""
        while (failure := self.failures.first) is not None and is_fatal(failure) and not deadline.passed:
            if self._serve(functools.partial(self._ready().poll, _WHY_SECONDS)) == 0:
                break

    def _report(self, error: KafkaError | None, message: Any) -> None:
        self.failures.report(error, message)
        if error is None and message is not None and self._kind.arrived is not None:
            self._kind.arrived(message.topic(), message.partition())

    def _serve(self, call: Callable[[], int | None]) -> int:
        """Make a call of the client that serves callbacks, and return its result; 0 after an error. Note the fatal
        error that the client raises from such a call instead of reporting it."""
        try:
            return call() or 0
        except RAISED as error:
            self.failures.add_of_row(raised(error))  # a report shows whether it concerns an own record
            return 0
        finally:
            if self._sender is not None:
                self.failures.report_native(self._sender)

    # -- the client

    def _ready(self) -> KafkaProducer:
        if self._client is None:
            raise RuntimeError("used before `begin`")
        return self._client

    def _make_client(self) -> KafkaProducer:
        client, self._sender = make_client(self._settings, self._kind, self._topics.limit_of_producer(), self._report)
        return client
