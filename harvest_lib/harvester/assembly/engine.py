"""The engine: it keeps the parts of a harvester that outlive a leader's term, and makes the `BatchLoop` of each term.

| source | delivery | a batch is committed when |
| --- | --- | --- |
| `mark`, or parts of an embedder | at least once | its rows are purged; no checkpoint is stored |
| `mark` | exactly once | its checkpoint is stored; its rows are purged later |
| other sources | any | its checkpoint is stored |
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import Consumer, Producer

from harvest_lib.batching.batch_size import LARGEST_BATCH, LARGEST_TRANSACTION, BatchSize
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.observers import BatchObservers
from harvest_lib.batching.parking import BatchParking
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.clock import boot_seconds
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import Delivery, Topics
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
)
from harvest_lib.events import Event
from harvest_lib.harvester.assembly.factory import (
    make_batch_source,
    make_checkpoints,
    make_delivery,
    make_parking,
    make_purging_delivery,
    make_purging_pages,
    make_source,
    make_topics,
)
from harvest_lib.harvester.assembly.other_readers import acknowledge_pending, before_term, refuse_readers_now
from harvest_lib.harvester.assembly.preconditions import Preconditions
from harvest_lib.harvester.housekeeping.added_partitions import Added, Memory, PartitionWatch
from harvest_lib.harvester.housekeeping.maintenance import Maintenance
from harvest_lib.harvester.observers.measures import HarvestMeasures, ShardMeasures
from harvest_lib.harvester.observers.topic_counts import TopicCounting, TopicCounts
from harvest_lib.harvester.observers.tracing import batch_tracing
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Leadership, Term
from harvest_lib.leadership.pool import Pool
from harvest_lib.outbox import OutboxTable, translate_table_errors
from harvest_lib.postgres.database import connect
from harvest_lib.record import Row
from harvest_lib.source import BatchSource, ClaimSource, MarkPages

_FIRST_CHECK_SECONDS, _CHECK_SECONDS = 3.0, 30.0
"""Seconds until a standby first checks that the leaders deliver with the same settings, and between two checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnParts:
    """The parts that an embedding program provides. If the program provides a source or a delivery, the harvester marks
    the table."""

    source: ClaimSource | None = None
    delivery: Delivery | None = None
    leadership: Leadership | None = None
    consumer_provider: KafkaConsumerProvider = Consumer
    producer_provider: KafkaProducerProvider = Producer

    @property
    def mark(self) -> bool:
        """Return True if the harvester marks the table, whatever its layout, because of these parts."""
        return self.source is not None or self.delivery is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Callbacks of a loop: `emit` gets leadership events, `delivered` gets numbers of delivered records."""

    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    measures: ShardMeasures = field(default_factory=lambda: HarvestMeasures().shard(0))
    """The metrics of the loop's shard, which the loop updates."""
    topic_counts: TopicCounts | None = None
    """The counts of delivered records by topic, which the loop updates; None if nothing needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """The parts that a loop connects: its source, its delivery, the store of its checkpoints and its parking."""

    source: BatchSource
    delivery: Delivery
    store: CheckpointStore
    parking: BatchParking | MarkedParking


class Engine:
    """The parts of a harvester that outlive a term. Each shard has separate parts. Only shard 0 exists where rows
    are purged without checkpoints."""

    def __init__(
        self,
        config: HarvestConfig,
        table: OutboxTable,
        own: OwnParts | None = None,
        *,
        pool: Callable[[], Pool] | None = None,
        preconditions: Preconditions | None = None,
    ) -> None:
        own = own or OwnParts()
        self._purges = own.mark or not config.mode.keeps_checkpoints
        if self._purges:  # parts of an embedder mark, whatever source the configuration names
            config = config.model_copy(update={"source": "mark"})
        self._config = config
        self._table = table
        self._own = own
        self._pool = pool
        self._preconditions = preconditions or Preconditions(config, table)
        is_seen_once = config.delivery == "transactional" and not config.mode.marks  # marked rows are purged later
        most = LARGEST_TRANSACTION if is_seen_once else LARGEST_BATCH
        self._sizes: dict[int, BatchSize] = defaultdict(partial(make_size, config, most))
        make = make_topics if own.delivery is None else _unknown_topics
        self._topics: dict[int, Topics] = defaultdict(partial(make, config))  # problems of topics outlive a term
        self._source = own.source or make_source(config, table) if self._purges else None
        self._watch = self._watch_of(0) if self._purges else None
        self._pages: MarkPages | None = None  # the pages of the previous term, if rows are purged without checkpoints
        self._check_at = boot_seconds() + _FIRST_CHECK_SECONDS
        # The same object serves all terms, so that an error is logged once.
        self._maintenance = Maintenance(config, table)

    def stand_by(self) -> None:
        """Check, every `_CHECK_SECONDS`, that the current leaders deliver the same outbox with the same settings. If
        they do not, raise CheckpointError or PoolConflict."""
        if self._purges or boot_seconds() < self._check_at:
            return
        self._check_at = boot_seconds() + _CHECK_SECONDS
        unavailable = (DatabaseUnavailable, DatabaseAccessDenied, KafkaUnavailable, KafkaAccessDenied)
        with suppress(*unavailable), self._translate_table_errors():
            with connect(self._config.data_source.conninfo()) as connection:
                self._preconditions.refuse_rivals(connection)
            if self._config.delivery == "transactional":
                self._preconditions.refuse_another()

    @property
    def added_partitions(self) -> Sequence[Added]:
        """The additions of partitions to topics, if only this process stores the additions; else empty."""
        return self._watch.added if self._watch is not None else ()

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> BatchLoop:
        """Return the loop of a term. If the term marks rows, first wait until the table may be marked."""
        config, topics = self._config, self._topics[term.shard]
        if config.mode.marks:
            before_term(config, term, stopping, self._step_before(term))
        topics.forget()
        topics.close({})
        source = self._source
        ends = self._checkpointed(term, topics) if source is None else self._purging(source, term, topics)
        watch = self._watch or self._watch_of(term.shard)
        watch.begin(term, stopping)
        if term.shard == 0 and config.mode.reads_segments:
            self._maintenance.begin(term, stopping)
        one_per_key = config.delivery == "barrier"
        counts = callbacks.topic_counts
        by_topic = [TopicCounting(counts, one_per_key=one_per_key)] if counts is not None else []
        ports = BatchPorts(
            source=ends.source,
            delivery=ends.delivery,
            store=ends.store,
            is_exactly_once=config.exactly_once and ends.store.keeps_positions,
            observers=BatchObservers([callbacks.measures, *by_topic, *batch_tracing(config, term.shard)]),
            parking=ends.parking,
            troubles=topics.troubles,
            producers_are_outdated=lambda: topics.is_producer_outdated,
            limits=config.limits,
            one_per_key=one_per_key,
            emit=callbacks.emit,
            delivered=callbacks.delivered,
            size=self._sizes[term.shard],
            translate_errors=self._translate_table_errors,
        )
        return BatchLoop(term, ports, stopping)

    def _step_before(self, term: Term) -> Callable[[], object]:
        """Return the function to call before a term that marks rows."""
        if self._purges:
            provider = self._own.producer_provider
            return partial(acknowledge_pending, self._config, self._table, term.leader_id, provider)
        return partial(refuse_readers_now, self._config, self._table)

    def _purging(self, source: ClaimSource, term: Term, topics: Topics) -> _Ends:
        if self._pages is not None:
            self._pages.await_closed()
        config, own = self._config, self._own
        self._pages = pages = make_purging_pages(config, source, term)
        delivery, store = make_purging_delivery(config, topics, pages, own.producer_provider, own.delivery)
        parking = MarkedParking(config.parking, topics, pages)
        return _Ends(source=pages, delivery=delivery, store=store, parking=parking)

    def _checkpointed(self, term: Term, topics: Topics) -> _Ends:
        config, table, shard = self._config, self._table, term.shard
        pool = self._pool() if self._pool is not None else None
        checkpoints = make_checkpoints(config, table, config.source, shard, pool)
        source = make_batch_source(config, table, shard)
        delivery, store = make_delivery(
            config,
            table,
            checkpoints,
            topics,
            shard,
            consumer_provider=self._own.consumer_provider,
            producer_provider=self._own.producer_provider,
        )
        parking = make_parking(config, table, checkpoints, topics, source)
        return _Ends(source=source, delivery=delivery, store=store, parking=parking)

    def _watch_of(self, shard: int) -> PartitionWatch:
        """Return the watch for added partitions. If the subscription has a row, the watch stores its findings there."""
        config, topics = self._config, self._topics[shard]
        memory = None
        if not self._purges:
            subscriptions = self._table.subscriptions.identifier
            memory = Memory(config.data_source.conninfo(), subscriptions, config.subscription, shard)
        return PartitionWatch(config.kafka_settings(for_producer=False), lambda: topics.names, memory)

    def _translate_table_errors(self) -> AbstractContextManager[None]:
        table, mode = self._table, self._config.mode
        beside = [] if self._purges else [table.subscriptions, table.parked_ids]
        parked = [table.parked] if mode.parks_rows else []
        tables = [table, *beside, *parked]
        return translate_table_errors(self._config.data_source.conninfo, tables, self._preconditions.check_columns)


def make_size(config: HarvestConfig, most: int = LARGEST_BATCH) -> BatchSize:
    """Return the batch size of a shard: at most `most` records, and within the configured limits."""
    in_flight, read = config.limits.max_in_flight_records, config.limits.mark_query_records
    if in_flight is not None:  # a process may lead all shards
        most = min(most, max(1, in_flight // config.shards))
    return BatchSize(most, read)


class _UnknownTopics(Topics):
    """The `Topics` for a delivery that an embedding program provides. That delivery itself reports rejected records, so
    no broker is queried."""

    def refused(self, rows: Sequence[Row], largest: int | None = None) -> dict[int, str]:  # noqa: ARG002 - as above
        return {}

    def oversized(self, rows: Sequence[Row], largest: int) -> set[int]:  # noqa: ARG002 - as above
        return set()


def _unknown_topics(_config: HarvestConfig) -> Topics:
    return _UnknownTopics({})
