"""Delivery at least once, through one idempotent producer.

Promises
- A record is acknowledged when every in-sync replica has it (`acks=all`).
- The producer's own retries neither repeat nor reorder (`enable.idempotence`).
- A record that has not left within the delivery timeout never leaves: it is reported as failed. The timeout is shorter
  than the session timeout, so a process that was frozen long enough for another to be elected finds its queue expired
  when it thaws. librdkafka checks that before it sends, on its own threads, so Python need not run first.
- A record's timestamp is taken before the check that it may still be sent. So where the topic refuses old timestamps
  (`message.timestamp.before.max.ms`), the broker refuses what a frozen leader had already handed to a socket buffer of
  its own, which nothing on this side can take back: see docs/operations.md, "Topics that refuse the late".
- Settings on which these rest cannot be overridden (see `harvest_lib.config`).

A key's records go to one partition: `partitioner=consistent` hashes as librdkafka's own default does, and therefore as
goharvest does, but does not scatter the empty key.
"""

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib.delivery.protocol import Failure, Reports
from harvest_lib.kafka_client import client_settings, refused_settings
from harvest_lib.provenance import HEADER_NAME, stamp
from harvest_lib.record import Row

_ABANDON_SECONDS = 2.0
"""How long purged records may take to report; it is a local operation."""

_DEFAULTS = {
    "linger.ms": 2,
    "partitioner": "consistent",
    "queue.buffering.max.messages": 1_000_000,  # our window is the limit that counts
}


class AtLeastOnce:
    """`Delivery` without transactions. `settings` are the user's producer settings, secrets in clear.

    Raises ConfigError for a setting that librdkafka does not take.
    """

    def __init__(self, settings: Mapping[str, object], *, delivery_timeout_seconds: float, record_header: bool) -> None:
        self._settings = client_settings(
            {**_DEFAULTS, **settings},
            **{
                "acks": "all",
                "allow.auto.create.topics": False,
                "enable.idempotence": True,
                "message.timeout.ms": int(delivery_timeout_seconds * 1000),
            },
        )
        self._record_header = record_header
        self._stamp: Callable[[int], bytes] | None = None
        # Made now, so that a setting that librdkafka refuses is refused before anything starts.
        self._producer: Producer | None = self._make_producer()
        self._dead = False  # librdkafka calls some errors fatal: the producer never sends again
        self._reports = Reports()

    def begin(self, leader_id: UUID) -> None:
        self._stamp = stamp(leader_id) if self._record_header else None
        if self._dead:
            self._reports = self.abandon()
            self._dead = False
        if self._producer is None:
            self._producer = self._make_producer()

    def send(self, rows: deque[Row], may_send: Callable[[], bool]) -> None:
        producer, stamped, report = self._producer, self._stamp, self._report
        if producer is None:
            raise RuntimeError("send before begin")
        while rows:
            timestamp_ms = int(time.time() * 1000)
            if not may_send():
                break
            row = rows[0]
            record_id, topic, key, value, names, contents = row
            try:
                headers: list[tuple[str, str | bytes | None]] = list(zip(names, contents, strict=True))
                if stamped is not None:
                    headers.append((HEADER_NAME, stamped(record_id)))
                producer.produce(
                    topic,
                    value,
                    key,
                    headers=headers,
                    timestamp=timestamp_ms,
                    on_delivery=functools.partial(report, row),
                )
            except BufferError:
                producer.poll(0.01)
                continue
            except (KafkaException, ValueError, TypeError) as error:
                self._dead = self._dead or (isinstance(error, KafkaException) and _is_fatal(error.args[0]))
                self._reports.failed.append(Failure(row=row, reason=str(error)))
            rows.popleft()

    def poll(self, timeout_seconds: float) -> Reports:
        if self._producer is not None:
            self._producer.poll(timeout_seconds)
        reports, self._reports = self._reports, Reports()
        return reports

    def abandon(self) -> Reports:
        producer, self._producer = self._producer, None
        if producer is not None:
            # Only once the queue is empty: close() would send what is left.
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            if producer.flush(_ABANDON_SECONDS):
                producer.purge(in_queue=True, in_flight=True, blocking=True)
            producer.close()
        return self.poll(0)

    def close(self) -> None:
        self.abandon()

    def _make_producer(self) -> Producer:
        with refused_settings():
            return Producer(self._settings)

    def _report(self, row: Row, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self._reports.acknowledged.append(row)
        else:
            self._dead = self._dead or _is_fatal(error)
            self._reports.failed.append(Failure(row=row, reason=error.str()))


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's own code
