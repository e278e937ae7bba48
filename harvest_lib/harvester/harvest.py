"""The harvester: its lifecycle, and the thread that waits for leadership and then harvests.

    CREATED ──start──► RUNNING ──stop──► STOPPING ──► STOPPED
                          └───────── a permanent error ───────────────────►

Threads: `harvest` waits for terms. `harvest-shard-N` runs the loop of a shard; no other thread uses the shard's
delivery. `harvest-mark`, `harvest-read` and `harvest-progress` wait for the database. The election has more threads.
"""

import enum
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Producer

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import Delivery
from harvest_lib.errors import HarvestError, LifecycleError
from harvest_lib.events import EventHandler
from harvest_lib.harvester.assembly.engine import Engine, OwnParts
from harvest_lib.harvester.assembly.factory import certificates_of, refuse_bad_settings
from harvest_lib.harvester.assembly.parts import Parts, choose_parts
from harvest_lib.harvester.housekeeping.added_partitions import Added
from harvest_lib.harvester.housekeeping.progress import ProgressLog
from harvest_lib.harvester.observers.topic_counts import TopicCounts
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.terms import Terms
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Leadership
from harvest_lib.native import implementation
from harvest_lib.outbox import OutboxTable
from harvest_lib.source import ClaimSource
from harvest_lib.telemetry.harmless import guard_loggers

_log = logging.getLogger(__name__)

_STANDBY_WAIT_SECONDS = 0.1
STOP_TIMEOUT_SECONDS = 10.0
"""Longest time for all steps of a stop together."""
_SLACK_SECONDS = 1.0
_UNRESPONSIVE_SECONDS = 60.0
"""A harvester is unresponsive if a turn of its main loop takes longer. A standby's check of servers takes less."""


class State(enum.Enum):
    """The state in the lifecycle of a harvester. A harvester never returns to an earlier state."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The result of `drain`: the number of records delivered, and the seconds that the drain took."""

    records: int
    seconds: float


class Harvest:
    """A harvester of an outbox. As a context manager, it starts on entry, and stops and waits for the end on exit.

    `source` (the database binding), `delivery` and `leadership` replace the parts that the configuration would choose.
    The providers create the Kafka clients for the parts that the configuration chooses.
    """

    def __init__(
        self,
        config: HarvestConfig,
        *,
        source: ClaimSource | None = None,
        delivery: Delivery | None = None,
        leadership: Leadership | None = None,
        kafka_consumer_provider: KafkaConsumerProvider = Consumer,
        kafka_producer_provider: KafkaProducerProvider = Producer,
    ) -> None:
        self._config = config
        self._table = OutboxTable.parse(config.outbox_table)
        refuse_bad_settings(config, kafka_producer_provider)
        self._own = OwnParts(
            source=source,
            delivery=delivery,
            leadership=leadership,
            consumer_provider=kafka_consumer_provider,
            producer_provider=kafka_producer_provider,
        )
        self._engine: Engine | None = None
        self._leadership = leadership
        self._state = State.CREATED
        self._state_lock = threading.RLock()  # a signal handler may call `stop` on the thread that is in `start`
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._stop_deadline: Deadline | None = None
        self._terms = Terms(config, self._stopping)
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.measures = self._terms.measures
        """The metrics that the harvester counts: see `harvest_lib.harvester.telemetry`."""
        self.certificates = certificates_of(config)
        """The certificates that the harvester's clients use."""

    # -- lifecycle

    def start(self) -> None:
        """Check that Postgres, the outbox table and Kafka can be used, then start the harvester's threads.

        Raises HarvestError if a server or the table cannot be used, so that a fault is reported at the start. If a
        server fails later, the harvester waits for it.
        """
        with self._state_lock:
            if self._state is not State.CREATED:
                raise LifecycleError(
                    f"cannot start a harvester that is {self._state.value}",
                    next_step="make a new Harvest: one instance runs once",
                )
            self._state = State.RUNNING
        guard_loggers()
        try:
            parts = choose_parts(self._config, self._table, self._own)
            self._engine, self._leadership = parts.engine, parts.leadership
            parts.leadership.start()
        except BaseException:
            self._go_to(State.STOPPED)
            self._stopped.set()
            raise
        self._config = parts.config
        ProgressLog(
            self._config.data_source.conninfo(),
            delivered=lambda: self.delivered_records,
            leads=lambda: self.is_leader,
            backlog_age_seconds=lambda connection: StatusReader(connection, self._config).oldest_age_seconds(),
        ).begin(self._stopped)
        self.certificates.begin(self._stopped, time.time)
        self._thread = threading.Thread(target=self._run, args=(parts,), name="harvest", daemon=True)
        self._thread.start()
        if parts.watch is not None:
            parts.watch.begin(self._end, self._stopped)
        parts.log(self._table)

    def stop(self) -> None:
        """Request the harvester to stop, and return at once. Signal handlers may call it; a second call is harmless."""
        with self._state_lock:
            if self._state is State.RUNNING:
                self._state = State.STOPPING
        self._stop_deadline = self._stop_deadline or Deadline(STOP_TIMEOUT_SECONDS)
        self._stopping.set()

    def await_stopped(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the harvester to stop and return True if it has stopped. Raise the error that ended it, if any."""
        if self._state is State.CREATED:
            raise LifecycleError("the harvester was never started", next_step="call `start` first")
        stopped = self._stopped.wait(timeout_seconds)
        if self._failure is not None:
            raise self._failure
        return stopped

    def drain(self, timeout_seconds: float | None = None) -> Drained:
        """Start, harvest until the backlog is empty and no record is in flight, stop, and return the result.

        If another process leads, wait for leadership. Raises LifecycleError after `timeout_seconds`.
        """
        began = time.monotonic()
        with self:
            while not self.is_drained:
                if self._stopped.wait(_STANDBY_WAIT_SECONDS):
                    break
                if timeout_seconds is not None and time.monotonic() - began > timeout_seconds:
                    raise LifecycleError(
                        f"the outbox was not empty after {timeout_seconds:g} s",
                        evidence=f"{self._terms.delivered_records} records delivered, leader: {self.is_leader}",
                        next_step="allow more time, or see the leader with `harvest status`",
                    )
        return Drained(records=self._terms.delivered_records, seconds=time.monotonic() - began)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        try:
            finished = self.await_stopped(STOP_TIMEOUT_SECONDS)
        except HarvestError:
            if error is None:
                raise
        else:
            if not finished and error is None:
                raise LifecycleError(
                    f"the harvester did not stop within {STOP_TIMEOUT_SECONDS:g} s",
                    evidence=f"{self.in_flight_records} records in flight",
                    next_step="check which server does not answer; unacknowledged records stay in the outbox",
                )

    # -- status, for any thread

    @property
    def state(self) -> State:
        """Return the lifecycle state of the harvester."""
        return self._state

    @property
    def has_started(self) -> bool:
        """True if `start` has succeeded."""
        return self._thread is not None

    @property
    def is_responsive(self) -> bool:
        """True if the harvester runs and its main loop has turned within the last minute, even if a server is down."""
        return self._state is State.RUNNING and boot_seconds() - self._terms.turned_at < _UNRESPONSIVE_SECONDS

    @property
    def is_leader(self) -> bool:
        """Return True if this process leads a shard."""
        return bool(self._terms.loops)

    @property
    def shards(self) -> list[int]:
        """Return the shards that this process leads now."""
        return sorted(self._terms.loops)

    @property
    def is_drained(self) -> bool:
        """True if this process leads all shards, and no shard has a backlog or a record in flight."""
        return self._terms.idle

    @property
    def leader_id(self) -> uuid.UUID | None:
        """Return the id under which this process leads its lowest shard now, or None."""
        loops = self._terms.loops.copy()
        return loops[min(loops)].leader_id if loops else None

    @property
    def led_shards(self) -> list[int]:
        """Return the shards that this process leads now, with a live lease."""
        return self._terms.shards

    @property
    def hand_over(self) -> str:
        """The implementation that hands records to librdkafka, `native` or `python`; empty before the start."""
        return implementation().name if self._engine is not None else ""

    @property
    def added_partitions(self) -> Sequence[Added]:
        """The additions of partitions to topics, if only this process stores the additions, as with `source: mark`."""
        return self._engine.added_partitions if self._engine is not None else ()

    @property
    def election_trouble(self) -> str:
        """The problem that would prevent this process from becoming leader; empty if no problem is known."""
        return str(getattr(self._leadership, "trouble", ""))  # the leadership of an embedding program may lack it

    @property
    def config(self) -> HarvestConfig:
        """Return the configuration of the harvester; after the start, with `auto` resolved."""
        return self._config

    @property
    def in_flight_records(self) -> int:
        """Return the number of records that were sent and are not acknowledged yet, over all led shards."""
        return sum(loop.in_flight for loop in self._terms.loops.copy().values())

    @property
    def in_flight_record_keys(self) -> list[str] | None:
        """The keys of the records in flight, each once, in the order in which the records were sent. None if this
        process leads with another `delivery` than `barrier`: only `barrier` sends one record of a key at a time.
        """
        found = [loop.keys_in_flight for loop in self._terms.loops.copy().values()]
        return None if None in found else [key for keys in found for key in keys or ()]

    @property
    def delivered_records(self) -> int:
        """Return the number of records that this instance has delivered."""
        return self._terms.delivered_records

    def count_topics(self) -> TopicCounts:
        """Count delivered records by topic, and return the counts. Terms that have begun before are not counted."""
        self._terms.topic_counts = self._terms.topic_counts or TopicCounts()
        return self._terms.topic_counts

    def set_event_handler(self, handler: EventHandler | None) -> None:
        """Call `handler` with each event, on a thread of the harvester. The handler should return quickly."""
        self._terms.handler = handler

    def _go_to(self, state: State) -> None:
        with self._state_lock:
            self._state = state

    # -- the harvest thread

    def _run(self, parts: Parts) -> None:
        before_term = parts.watch.check if parts.watch is not None else lambda: None
        try:
            self._guarded(lambda: self._terms.serve(parts.leadership, parts.engine, self._guarded, before_term))
        finally:
            deadline = self._stop_deadline or Deadline(STOP_TIMEOUT_SECONDS)
            self._terms.join(deadline, 2 * _SLACK_SECONDS)
            self._go_to(State.STOPPING)
            try:
                parts.leadership.stop(max(0.0, deadline.remaining_seconds - _SLACK_SECONDS))
            except BaseException as error:  # noqa: BLE001 - await_stopped raises the first failure
                self._failure = self._failure or error
            self._go_to(State.STOPPED)
            # Logged before waiters are notified, because the process may end at once then, and this daemon thread too.
            _log.info("harvester_stopped", extra={"delivered": self.delivered_records})
            self._stopped.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run the work of a thread. An error that ends the thread ends the harvester too; `await_stopped` raises it."""
        is_done = False
        try:
            work()
            is_done = True
        except HarvestError as error:  # logged without a traceback, which may quote a row
            self._end(error)
        except BaseException as error:  # noqa: BLE001 - await_stopped raises it
            self._failure = self._failure or error
            _log.exception("harvester_died")
        finally:
            if not is_done:
                # confluent-kafka can raise an object that is no exception, which no clause above catches.
                ended_by_itself = LifecycleError("the harvester ended by itself", next_step="see the log above")
                self._failure = self._failure or ended_by_itself
                self._stopping.set()

    def _end(self, error: HarvestError) -> None:
        """Stop permanently because of an error. Records in flight are still delivered, and leadership is released."""
        self._failure = self._failure or error
        _log.error(
            "harvester_died",
            extra={"reason": error.cause, "evidence": error.evidence, "next_step": error.next_step},
        )
        self._stopping.set()
