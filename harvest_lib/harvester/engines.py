"""Engines that lead a shard, by source: the parts that stay from term to term, and the loop of each term.

mark                              `MarkLoop`: mark, send, purge; asks its source on a thread of its own
snapshot, transaction_id          `BatchLoop`: batches; parts for each shard
mark, if delivered exactly once   `BatchLoop` likewise

With `HARVEST_MARK_BATCHES=1` the first is `BatchLoop` too, whose checkpoint is the purge (`MarkEngine`).
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import psycopg
from confluent_kafka import Consumer, Producer

from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parked_ids import ParkedIds
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.checkpoints.table import check_subscription
from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.config import HarvestConfig
from harvest_lib.config.environment import marks_in_batches
from harvest_lib.database import connect, translated
from harvest_lib.delivery import Delivery, Topics
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
    OutboxTableError,
)
from harvest_lib.events import Event
from harvest_lib.harvester.added_partitions import Added, Memory, PartitionWatch
from harvest_lib.harvester.compacted_topics import refuse_compacted
from harvest_lib.harvester.factory import (
    make_batch_source,
    make_checkpoints,
    make_delivery,
    make_guarantee,
    make_kafka_store,
    make_parking,
    make_purging_guarantee,
    make_rivals,
    make_selection,
    make_source,
    make_topics,
    subscription_of,
)
from harvest_lib.harvester.maintenance import Maintenance
from harvest_lib.harvester.measures import HarvestMeasures, MeasuredDelivery, MeasuredGuarantee, ShardMeasures
from harvest_lib.harvester.other_readers import acknowledge_pending, before_term, refuse_readers, refuse_readers_now
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.tracing import traced_delivery, traced_guarantee
from harvest_lib.harvester.transactions import prepare_transactions
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Term
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.marking.loop import MarkLoop
from harvest_lib.marking.ports import MarkPorts
from harvest_lib.native import Implementation, NativeRows, implementation
from harvest_lib.outbox import (
    OutboxTable,
    ParkedRecords,
    Restamping,
    check_column_mapping,
    create_beside,
    translate_missing_table,
)
from harvest_lib.outbox.identity import check_identities
from harvest_lib.outbox.parking_rules import ParkingRules, Refusals
from harvest_lib.outbox.replays import Replays
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.record import Row
from harvest_lib.source import ClaimSource, MarkPages, SourceThread

_log = logging.getLogger(__name__)

_FIRST_ASK_SECONDS, _ASK_SECONDS = 3.0, 30.0
"""A standby checks that the leaders deliver as it would: seconds until the first check, and between later ones."""


Check = tuple[str, Callable[[], object]]
"""A named precondition. The call raises HarvestError if it does not hold, and changes nothing."""


class InFlightRecords(Protocol):
    """The records in flight, as seen from outside."""

    @property
    def records(self) -> int: ...

    @property
    def keys(self) -> list[str]: ...


class EngineLoop(Protocol):
    """The harvesting of one term."""

    leader_id: Any
    idle: bool

    @property
    def epoch(self) -> int | None:
        """Return the epoch under which it led last; None if it marks, without epochs."""
        ...

    @property
    def holds_off(self) -> bool:
        """Return True, at the end of the term, if this process should hold off, see `hold_off`."""
        ...

    @property
    def in_flight(self) -> InFlightRecords: ...

    def run(self) -> None:
        """Harvest until the term is over or a stop is asked for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Callbacks of a loop: leadership events, delivered counts and measures."""

    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    measures: ShardMeasures = field(default_factory=lambda: HarvestMeasures().shard(0))
    """The counts of its shard."""


class Engine(Protocol):
    """A way of harvesting."""

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise errors of the tables, and make those that are missing beside the outbox."""
        ...

    def start(self) -> None:
        """Start the parts that outlive a term."""
        ...

    def stand_by(self) -> None:
        """While others lead, see to it now and then that they lead our outbox, as we would. Raises CheckpointError or
        PoolConflict."""
        return

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> EngineLoop:
        """Return the loop of a term."""
        ...

    def backlog_age_seconds(self, connection: psycopg.Connection[Any]) -> float:
        """Return the age of the oldest record that waits, 0 if none does. Reads few rows. Raises HarvestError."""
        ...

    @property
    def hand_over(self) -> Implementation:
        """Return by what records are handed over to Kafka."""
        return implementation()

    @property
    def added_partitions(self) -> Sequence[Added]:
        """Return the topics to which partitions were added, where only this process knows it."""
        return ()

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002 - for those who need it
        """Let go of everything; nothing leaves after that. Safe to repeat."""
        return


class MarkEngine(Engine):
    """`Engine` that marks and purges; one shard."""

    def __init__(
        self,
        config: HarvestConfig,
        table: OutboxTable,
        *,
        source: ClaimSource | None = None,
        delivery: Delivery | None = None,
        producer_provider: KafkaProducerProvider = Producer,
    ) -> None:
        self._config = config
        self._table = table
        self._producer_provider = producer_provider
        self._source = source or make_source(config, table)
        self._topics = topics = make_topics(config)
        self._watch = PartitionWatch(config.kafka_settings(for_producer=False), lambda: topics.names)
        self._in_batches = marks_in_batches() and delivery is None
        self._size = BatchSize()
        self._delivery = delivery
        if delivery is None and not self._in_batches:
            self._delivery = make_delivery(config, topics, producer_provider)
        self._refusals: Refusals = partial(_refused, topics) if delivery is None else lambda _rows: {}
        self._thread: SourceThread | None = None

    def check(self, connection: psycopg.Connection[Any]) -> None:
        self._table.check(connection)
        if self._config.parking != "stop":
            _check_parked(connection, self._table)
        for _, check in marking_checks(connection, self._config, self._table, parks=self._config.parking != "stop"):
            check()

    def start(self) -> None:
        if not self._in_batches:
            self._thread = SourceThread(self._source, self._translate_missing_table)

    def _translate_missing_table(self) -> AbstractContextManager[None]:
        tables = [self._table, *([self._table.parked] if self._config.parking != "stop" else [])]
        return translate_missing_table(self._config.data_source.conninfo(), tables)

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> EngineLoop:
        before_term(
            self._config,
            term,
            stopping,
            partial(acknowledge_pending, self._config, self._table, term.leader_id, self._producer_provider),
        )
        self._watch.begin(term, stopping)
        return (self._batch_loop if self._in_batches else self._mark_loop)(term, stopping, callbacks)

    def _batch_loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> BatchLoop:
        config, topics = self._config, self._topics
        pages = MarkPages(self._source, config.limits.mark_backoff_seconds, names_ids=False)
        guarantee = make_purging_guarantee(config, topics, pages, self._producer_provider)
        ports = BatchPorts(
            source=pages,
            guarantee=MeasuredGuarantee(traced_guarantee(guarantee, config, term.shard), callbacks.measures),
            parking=MarkedParking(config.parking, topics, pages),
            troubles=topics.troubles,
            limits=config.limits,
            one_per_key=config.delivery == "barrier",
            emit=callbacks.emit,
            delivered=callbacks.delivered,
            size=self._size,
            translate_errors=self._translate_missing_table,
        )
        return BatchLoop(term, ports, stopping)

    def _mark_loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> MarkLoop:
        assert self._thread is not None  # noqa: S101 - `start` makes it
        assert self._delivery is not None  # noqa: S101 - as above
        ports = MarkPorts(
            source=self._thread,
            delivery=MeasuredDelivery(traced_delivery(self._delivery, self._config), callbacks.measures),
            parking=ParkingRules(self._config.parking, self._refusals),
            limits=self._config.limits,
            one_per_key=self._config.delivery == "barrier",
            emit=callbacks.emit,
            delivered=callbacks.delivered,
        )
        return MarkLoop(term, ports, stopping)

    def backlog_age_seconds(self, connection: psycopg.Connection[Any]) -> float:
        return self._table.oldest_age_seconds(connection)

    @property
    def hand_over(self) -> Implementation:
        if self._config.delivery == "barrier":
            return Implementation(name="python", reason="under the key barrier each record is followed on its way")
        if self._config.limits.send_concurrency > 1 and not self._in_batches:
            return Implementation(name="python", reason="`sendConcurrency` is not 1: each key has its lane")
        return super().hand_over

    @property
    def added_partitions(self) -> Sequence[Added]:
        return self._watch.added

    def close(self, deadline: Deadline) -> None:
        try:
            if self._delivery is not None:
                self._delivery.close()
        finally:
            if self._thread is not None:
                self._thread.stop(deadline.remaining_seconds)


def marking_checks(
    connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable, *, parks: bool
) -> list[Check]:
    """Return the preconditions for marking a table, once the tables are there."""
    tables = [table.identifier, *([table.parked.identifier] if parks else [])]
    return [
        ("all rows can be marked", lambda: check_all_rows(connection, tables, ("SELECT", "UPDATE", "DELETE"))),
        ("no subscription reads it", lambda: refuse_readers(connection, config, table)),
    ]


def _check_parked(connection: psycopg.Connection[Any], table: OutboxTable) -> None:
    """Make the table of parked records if it is missing; raise errors of it."""
    parked = ParkedRecords(table)
    with suppress(DatabaseAccessDenied):  # the check says what is missing
        parked.create(connection)
    parked.check(connection)


def _refused(topics: Topics, rows: Sequence[Row]) -> Mapping[int, str]:
    if isinstance(rows, NativeRows):  # which know how large they are
        return topics.refused(rows)
    return topics.refused(rows, max([len(row[3]) for row in rows if row[3]], default=0))


class BatchEngine(Engine):
    """`Engine` in batches, with parts of its own for each shard."""

    def __init__(
        self,
        config: HarvestConfig,
        table: OutboxTable,
        *,
        producer_provider: KafkaProducerProvider = Producer,
        consumer_provider: KafkaConsumerProvider = Consumer,
        pool: Callable[[], Pool] | None = None,
    ) -> None:
        self._config = config
        self._table = table
        self._pool = pool
        self._producer_provider = producer_provider
        self._consumer_provider = consumer_provider
        self._sizes: dict[int, BatchSize] = defaultdict(BatchSize)
        self._topics: dict[int, Topics] = defaultdict(partial(make_topics, config))  # troubles outlive a term
        self._parks = config.parking != "stop"
        self._ask_at = 0.0
        self._rivals: Rivals | None = None
        # One for all terms: it knows what it has complained of.
        self._maintenance = Maintenance(config, table)

    def check(self, connection: psycopg.Connection[Any]) -> None:
        if self._config.source == "mark":
            self._table.check(connection)
            self._check_parked(connection)
        elif self._config.columns is not None:
            check_column_mapping(connection, self._table, self._config.columns)
        else:
            self._table.check_native(connection)
            self._table.check_sequence(connection)
        check_all_rows(connection, [self._table.identifier])
        with suppress(DatabaseAccessDenied):
            create_beside(connection, self._table)
        for _, check in self.checks(connection):
            check()
        self._refuse_rivals(connection)
        if self._config.delivery == "transactional":
            prepare_transactions(self._config, self._producer_provider)
            self._refuse_another()
        if self._config.delivery == "sequenced":
            refuse_compacted(connection, self._table, self._config.subscription, make_topics(self._config))

    def checks(self, connection: psycopg.Connection[Any]) -> list[Check]:
        """Return the preconditions, once the tables are there."""
        table, subscription = self._table, subscription_of(self._config, self._config.source)
        places = table.subscriptions.identifier
        checks: list[Check] = [
            ("the subscription", lambda: check_subscription(connection, places, subscription)),
            ("rights, tried out and undone", lambda: self._check_grants(connection)),
            (
                "the server is that of the checkpoints",
                lambda: check_identities(connection, places, table.identifier, subscription.name),
            ),
        ]
        if self._config.source == "mark":
            return [*marking_checks(connection, self._config, table, parks=self._parks), *checks]
        if self._config.columns is None:  # one that was begun has to be finished
            checks = [
                ("no restamping that was begun", lambda: Restamping(outbox=table).check_not_needed(connection)),
                ("no replay that was begun", lambda: _check_filled(connection, table, subscription.name)),
                *checks,
            ]
        return checks

    def checks_with_kafka(self) -> list[Check]:
        """Return the preconditions between Postgres and Kafka once the tables are there, on connections of its own."""

        def refuse_rivals() -> None:
            with connect(self._config.data_source.conninfo()) as connection:
                self._refuse_rivals(connection, tell=False)

        checks: list[Check] = [("no other pool leads", refuse_rivals)]
        if self._config.delivery == "transactional":
            checks.append(("the checkpoints in Kafka are of this outbox", self._refuse_another))
        return checks

    def _refuse_rivals(self, connection: psycopg.Connection[Any], *, tell: bool = True) -> None:
        if self._pool is not None:  # one for all terms, as above
            self._rivals = self._rivals or make_rivals(self._config, self._pool())
            subscription = self._config.subscription
            self._rivals.refuse(connection, self._table.subscriptions.identifier, subscription, tell=tell)

    def _check_parked(self, connection: psycopg.Connection[Any]) -> None:
        """Find out whether records can be parked. A role with only the grants of earlier versions goes on as with
        those, and stops at a record that can never be sent."""
        if not self._parks:
            return
        try:
            _check_parked(connection, self._table)
        except (DatabaseAccessDenied, OutboxTableError) as error:
            self._parks = False
            _log.warning("parking_unavailable", extra={"reason": error.cause, "next_step": error.next_step})

    def _check_grants(self, connection: psycopg.Connection[Any]) -> None:
        """Raise DatabaseAccessDenied for operations that will be refused: later that would be waited out."""
        config, table = self._config, self._table
        checkpoints = make_checkpoints(config, table, config.source, 0)
        rows = make_selection(config, table) if config.source != "mark" else None
        places = ParkedIds(checkpoints, table.parked_ids.identifier, table.subscriptions.identifier, rows)
        with closing(checkpoints), checkpoints.rehearsed():
            places.load(each=False)
            places.add([])
            places.release([])
        if config.source != "mark":  # of which the table's own check has asked
            with translated():
                connection.execute(make_selection(config, table).fill("SELECT {columns} FROM {table} LIMIT 0"), {})

    def _refuse_another(self) -> None:
        """Raise CheckpointError if the names that we use in Kafka are another outbox's: before anybody is fenced."""
        config = self._config
        checkpoints = make_checkpoints(config, self._table, config.source, 0)
        providers = {"consumer_provider": self._consumer_provider, "producer_provider": self._producer_provider}
        with closing(checkpoints):
            make_kafka_store(config, self._table, checkpoints, 0, **providers).refuse_another()

    def stand_by(self) -> None:
        if boot_seconds() < self._ask_at:
            return
        self._ask_at = boot_seconds() + _ASK_SECONDS
        away = (DatabaseUnavailable, DatabaseAccessDenied, KafkaUnavailable, KafkaAccessDenied)
        with suppress(*away), self._translate_missing_table():
            with connect(self._config.data_source.conninfo()) as connection:
                self._refuse_rivals(connection)
            if self._config.delivery == "transactional":
                self._refuse_another()

    def _translate_missing_table(self) -> AbstractContextManager[None]:
        table = self._table
        parked = [table.parked] if self._config.source == "mark" and self._parks else []
        tables = [table, table.subscriptions, table.parked_ids, *parked]
        return translate_missing_table(self._config.data_source.conninfo(), tables)

    def start(self) -> None:
        """See `Engine`. Nothing outlives a term."""
        self._ask_at = boot_seconds() + _FIRST_ASK_SECONDS

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> EngineLoop:
        config, table, kind = self._config, self._table, self._config.source
        if kind == "mark":
            before_term(config, term, stopping, partial(refuse_readers_now, config, table))
        topics = self._topics[term.shard]
        topics.forget()
        topics.close({})
        pool = self._pool() if self._pool is not None else None
        checkpoints = make_checkpoints(config, table, kind, term.shard, pool)
        source = make_batch_source(config, table, kind, term.shard, parks=self._parks)
        guarantee = make_guarantee(
            config,
            table,
            checkpoints,
            topics,
            term.shard,
            consumer_provider=self._consumer_provider,
            producer_provider=self._producer_provider,
        )
        ports = BatchPorts(
            source=source,
            guarantee=MeasuredGuarantee(traced_guarantee(guarantee, config, term.shard), callbacks.measures),
            parking=make_parking(config, table, checkpoints, topics, source, parks=self._parks),
            troubles=topics.troubles,
            limits=config.limits,
            one_per_key=config.delivery == "barrier",
            emit=callbacks.emit,
            delivered=callbacks.delivered,
            size=self._sizes[term.shard],
            translate_errors=self._translate_missing_table,
        )
        subscriptions, kafka = table.subscriptions.identifier, config.kafka_settings(for_producer=False)
        memory = Memory(config.data_source.conninfo(), subscriptions, config.subscription, term.shard)
        PartitionWatch(kafka, lambda: topics.names, memory).begin(term, stopping)
        if term.shard == 0 and kind != "mark" and config.columns is None:  # another layout has no segments
            self._maintenance.begin(term, stopping)
        return BatchLoop(term, ports, stopping)

    def backlog_age_seconds(self, connection: psycopg.Connection[Any]) -> float:
        if self._config.source == "mark":
            return self._table.oldest_age_seconds(connection)
        return StatusReader(connection, self._config).oldest_age_seconds()


def _check_filled(connection: psycopg.Connection[Any], table: OutboxTable, subscription: str) -> None:
    Replays(table).require_filled(connection, subscription)
