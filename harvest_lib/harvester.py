"""The harvester: its lifecycle, and the thread that harvests whenever this process leads.

    CREATED ──start──► RUNNING ──stop──► STOPPING ──► STOPPED
                          └───────── an error that will not pass ─────────►

Threads: `harvest` (the loop; the only one that touches the delivery), `harvest-source` (asks the database) and the
leadership's own.
"""

import enum
import logging
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Producer

from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect
from harvest_lib.deadline import Deadline, boot_seconds
from harvest_lib.delivery import Delivery, Topics
from harvest_lib.errors import DatabaseAccessDenied, HarvestError, LifecycleError
from harvest_lib.events import (
    Event,
    EventHandler,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    MeterRead,
)
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider, topic_partitions
from harvest_lib.leadership import Leadership, Term, TermEnd
from harvest_lib.metrics import Meter
from harvest_lib.outbox import OutboxTable, ParkedRecords
from harvest_lib.parking import Parking, Refusals
from harvest_lib.parts import make_delivery, make_leadership, make_source
from harvest_lib.source import Source, SourceThread
from harvest_lib.term_loop import TermLoop
from harvest_lib.wiring import Wiring

_log = logging.getLogger(__name__)

_STANDBY_WAIT_SECONDS = 0.1
STOP_TIMEOUT_SECONDS = 10.0
"""How long all steps of a stop may take together."""
_SLACK_SECONDS = 1.0


class State(enum.Enum):
    """Where a harvester is in its life; it never goes back."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What a `drain` did: records delivered and purged, and how long it took."""

    records: int
    seconds: float


class Harvest:
    """Harvest one outbox. Also a context manager: starts on entry, stops and waits on exit.

    `source` (the database binding), `delivery` and `leadership` replace the parts that the configuration would choose;
    the providers make the Kafka clients of those that it does choose.
    """

    def __init__(
        self,
        config: HarvestConfig,
        *,
        source: Source | None = None,
        delivery: Delivery | None = None,
        leadership: Leadership | None = None,
        kafka_consumer_provider: KafkaConsumerProvider = Consumer,
        kafka_producer_provider: KafkaProducerProvider = Producer,
    ) -> None:
        self._config = config
        self._table = OutboxTable.parse(config.outbox_table)
        self._source = source or make_source(config, self._table)
        topics = Topics(config.kafka_settings(for_producer=False))
        self._delivery = delivery or make_delivery(config, topics, kafka_producer_provider)
        self._refusals: Refusals = topics.refused if delivery is None else lambda _rows: {}
        self._leadership = leadership or make_leadership(config, kafka_consumer_provider, kafka_producer_provider)
        self._source_thread: SourceThread | None = None
        self._handler: EventHandler | None = None
        self._state = State.CREATED
        self._state_lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._stop_deadline: Deadline | None = None
        self._hold_until = 0.0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: TermLoop | None = None
        self._meter = Meter("throughput", boot_seconds())

    # -- lifecycle

    def start(self) -> None:
        """Check that Postgres, the outbox table and Kafka can be used, then begin.

        Raises HarvestError when one of them cannot: starting is the moment to hear of it. Later, the same troubles are
        waited out.
        """
        with self._state_lock:
            if self._state is not State.CREATED:
                raise LifecycleError(
                    f"cannot start a harvester that is {self._state.value}",
                    next_step="make a new Harvest: one instance runs once",
                )
            self._state = State.RUNNING
        try:
            with connect(self._config.data_source.conninfo()) as connection:
                self._table.check(connection)
                if self._config.parking != "stop":
                    parked = ParkedRecords(self._table)
                    with suppress(DatabaseAccessDenied):  # the check says what is missing
                        parked.create(connection)
                    parked.check(connection)
            topic_partitions(self._config.kafka_settings(for_producer=False))
            self._leadership.start()
        except BaseException:
            self._delivery.close()
            self._state = State.STOPPED
            self._stopped.set()
            raise
        self._source_thread = SourceThread(self._source)
        self._thread = threading.Thread(target=self._run, name="harvest", daemon=True)
        self._thread.start()
        _log.info("harvester_started", extra={"instance": self._config.name, "table": str(self._table)})

    def stop(self) -> None:
        """Ask the harvester to stop and return at once. Safe to repeat, and from a signal handler."""
        if self._state is State.RUNNING:
            self._state = State.STOPPING
        self._stop_deadline = self._stop_deadline or Deadline(STOP_TIMEOUT_SECONDS)
        self._stopping.set()

    def await_stopped(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the harvester has stopped and tell whether it has; raises what killed it, if anything did."""
        if self._state is State.CREATED:
            raise LifecycleError("the harvester was never started", next_step="call `start` first")
        stopped = self._stopped.wait(timeout_seconds)
        if self._failure is not None:
            raise self._failure
        return stopped

    def drain(self, timeout_seconds: float | None = None) -> Drained:
        """Start, harvest until the backlog is empty and nothing is in flight, stop, and return what was done.

        Waits for leadership if another process has it. Raises LifecycleError if `timeout_seconds` pass first.
        """
        began = time.monotonic()
        with self:
            while not self._idle():
                if self._stopped.wait(_STANDBY_WAIT_SECONDS):
                    break
                if timeout_seconds is not None and time.monotonic() - began > timeout_seconds:
                    raise LifecycleError(
                        f"the outbox was not empty after {timeout_seconds:g} s",
                        evidence=f"{self._meter.total} records delivered, leader: {self.is_leader}",
                        next_step="allow more time, or see with `harvest status` who leads",
                    )
        return Drained(records=self._meter.total, seconds=time.monotonic() - began)

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
                    next_step="look for a server that does not answer; unacknowledged records stay in the outbox",
                )

    # -- what can be seen from outside, from any thread

    @property
    def state(self) -> State:
        return self._state

    @property
    def is_leader(self) -> bool:
        return self._loop is not None

    @property
    def leader_id(self) -> uuid.UUID | None:
        """Return the id under which this process leads now, or None."""
        loop = self._loop
        return loop.leader_id if loop is not None else None

    @property
    def in_flight_records(self) -> int:
        loop = self._loop
        return loop.in_flight.records if loop is not None else 0

    @property
    def in_flight_record_keys(self) -> list[str]:
        loop = self._loop
        return loop.in_flight.keys if loop is not None else []

    @property
    def delivered_records(self) -> int:
        """Return how many records this instance has delivered and purged."""
        return self._meter.total

    def set_event_handler(self, handler: EventHandler | None) -> None:
        """Have `handler` called with each event, on the harvester's thread: it should return soon."""
        self._handler = handler

    # -- the harvest thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                term = self._leadership.term(_STANDBY_WAIT_SECONDS)
                if boot_seconds() < self._hold_until:
                    self._stopping.wait(_STANDBY_WAIT_SECONDS)
                elif term is not None:
                    self._lead(term)
        except HarvestError as error:  # its words are safe to show; the traceback of its cause may quote a row
            self._failure = error
            _log.error("harvester_died", extra={"reason": str(error)})
        except BaseException as error:  # noqa: BLE001 - whatever it is, await_stopped raises it
            self._failure = error
            _log.exception("harvester_died")
        finally:
            if self._failure is None and not self._stopping.is_set():
                # confluent-kafka can raise an object that is no exception: no clause above sees it.
                self._failure = LifecycleError("the harvester ended by itself", next_step="see the log above")
            self._state = State.STOPPING
            try:
                self._close()
            except BaseException as error:  # noqa: BLE001 - as above; the first failure is the one that counts
                self._failure = self._failure or error
            self._state = State.STOPPED
            self._stopped.set()
            _log.info("harvester_stopped", extra={"delivered": self._meter.total})

    def _lead(self, term: Term) -> None:
        assert self._source_thread is not None  # noqa: S101 - `start` makes it before this thread
        wiring = Wiring(
            source=self._source_thread,
            delivery=self._delivery,
            parking=Parking(self._config.parking, self._refusals),
            limits=self._config.limits,
            one_per_key=self._config.delivery == "barrier",
            emit=self._emit,
            delivered=self._delivered,
        )
        self._loop = loop = TermLoop(term, wiring, self._stopping)
        self._emit(LeaderAcquired(leader_id=term.leader_id))
        try:
            loop.run()
        finally:
            if loop.abandoned:
                # What was on the wire may still arrive. Another process would lead after the session timeout at the
                # earliest; this one keeps to the same, so that what arrives then is too old for the topic's limit.
                self._hold_until = boot_seconds() + self._config.session_timeout_seconds
            self._emit(LeaderFenced() if term.ended is TermEnd.FENCED else LeaderRevoked())
            self._loop = None

    def _close(self) -> None:
        deadline = self._stop_deadline or Deadline(STOP_TIMEOUT_SECONDS)
        with ExitStack() as closing:  # last in, first out, and each even if another fails
            if (thread := self._source_thread) is not None:
                closing.callback(lambda: thread.stop(deadline.remaining_seconds))
            closing.callback(lambda: self._leadership.stop(max(0.0, deadline.remaining_seconds - _SLACK_SECONDS)))
            closing.callback(self._delivery.close)  # before leadership goes: nothing of ours leaves after that

    def _delivered(self, records: int) -> None:
        self._meter.add(records)
        now = boot_seconds()
        if self._meter.due(now, self._config.limits.min_metrics_interval_seconds):
            self._emit(MeterRead(stats=self._meter.read(now)))

    def _idle(self) -> bool:
        loop = self._loop
        return loop is not None and loop.idle

    def _emit(self, event: Event) -> None:
        if not isinstance(event, MeterRead):
            _log.info(_EVENT_NAMES[type(event)], extra={"leader_id": str(self.leader_id)})
        if self._handler is not None:
            try:
                self._handler(event)
            except Exception:  # noqa: BLE001 - a handler's fault is not the harvester's
                _log.exception("event_handler_failed")


_EVENT_NAMES = {
    LeaderAcquired: "leader_acquired",
    LeaderRefreshed: "leader_refreshed",
    LeaderFenced: "leader_fenced",
    LeaderRevoked: "leader_revoked",
}
