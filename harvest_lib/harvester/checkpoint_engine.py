"""Engine of sources that only read, and of marked tables exactly once: a batch counts with its checkpoint."""

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial

from confluent_kafka import Consumer, Producer

from harvest_lib.batching.batch_size import LARGEST_BATCH, LARGEST_TRANSACTION, BatchSize
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.clock import boot_seconds
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect
from harvest_lib.delivery import Topics
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
)
from harvest_lib.harvester.added_partitions import Memory, PartitionWatch
from harvest_lib.harvester.engine import Callbacks, Engine, make_loop, make_size
from harvest_lib.harvester.factory import (
    make_batch_source,
    make_checkpoints,
    make_delivery,
    make_parking,
    make_topics,
)
from harvest_lib.harvester.maintenance import Maintenance
from harvest_lib.harvester.other_readers import before_term, refuse_readers_now
from harvest_lib.harvester.preconditions import Preconditions
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Term
from harvest_lib.leadership.pool import Pool
from harvest_lib.outbox import (
    OutboxTable,
    translate_table_errors,
)

_FIRST_ASK_SECONDS, _ASK_SECONDS = 3.0, 30.0
"""A standby checks that the leaders deliver in its own way: seconds until the first check, and between later checks."""


class CheckpointEngine(Engine):
    """`Engine` with a checkpoint after each batch, and parts of its own for each shard."""

    def __init__(
        self,
        config: HarvestConfig,
        table: OutboxTable,
        *,
        producer_provider: KafkaProducerProvider = Producer,
        consumer_provider: KafkaConsumerProvider = Consumer,
        pool: Callable[[], Pool] | None = None,
        preconditions: Preconditions | None = None,
    ) -> None:
        self._config = config
        self._table = table
        self._pool = pool
        self._producer_provider = producer_provider
        self._consumer_provider = consumer_provider
        is_seen_once = config.delivery == "transactional" and not config.mode.marks  # a marking source purges too
        most = LARGEST_TRANSACTION if is_seen_once else LARGEST_BATCH
        self._sizes: dict[int, BatchSize] = defaultdict(partial(make_size, config, most))
        self._topics: dict[int, Topics] = defaultdict(partial(make_topics, config))  # troubles outlive a term
        self._ask_at = boot_seconds() + _FIRST_ASK_SECONDS
        self._preconditions = preconditions or Preconditions(config, table)
        self._maintenance = Maintenance(config, table)  # kept over all terms, so that an error is logged once

    def stand_by(self) -> None:
        if boot_seconds() < self._ask_at:
            return
        self._ask_at = boot_seconds() + _ASK_SECONDS
        unavailable = (DatabaseUnavailable, DatabaseAccessDenied, KafkaUnavailable, KafkaAccessDenied)
        with suppress(*unavailable), self._translate_table_errors():
            with connect(self._config.data_source.conninfo()) as connection:
                self._preconditions.refuse_rivals(connection)
            if self._config.delivery == "transactional":
                self._preconditions.refuse_another()

    def _translate_table_errors(self) -> AbstractContextManager[None]:
        table = self._table
        parked = [table.parked] if self._config.mode.parks_rows else []
        tables = [table, table.subscriptions, table.parked_ids, *parked]
        return translate_table_errors(self._config.data_source.conninfo, tables, self._preconditions.check_columns)

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> BatchLoop:
        config, table, kind = self._config, self._table, self._config.source
        if config.mode.marks:
            before_term(config, term, stopping, partial(refuse_readers_now, config, table))
        topics = self._topics[term.shard]
        topics.forget()
        topics.close({})
        pool = self._pool() if self._pool is not None else None
        checkpoints = make_checkpoints(config, table, kind, term.shard, pool)
        source = make_batch_source(config, table, term.shard)
        delivery, store = make_delivery(
            config,
            table,
            checkpoints,
            topics,
            term.shard,
            consumer_provider=self._consumer_provider,
            producer_provider=self._producer_provider,
        )
        subscriptions, kafka = table.subscriptions.identifier, config.kafka_settings(for_producer=False)
        memory = Memory(config.data_source.conninfo(), subscriptions, config.subscription, term.shard)
        PartitionWatch(kafka, lambda: topics.names, memory).begin(term, stopping)
        if term.shard == 0 and config.mode.reads_segments:
            self._maintenance.begin(term, stopping)
        return make_loop(
            config,
            term,
            stopping,
            callbacks,
            source=source,
            delivery=delivery,
            store=store,
            parking=make_parking(config, table, checkpoints, topics, source),
            topics=topics,
            size=self._sizes[term.shard],
            translate_errors=self._translate_table_errors,
        )
