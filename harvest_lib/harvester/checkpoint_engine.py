"""Engine of sources that are only read, and of marked tables exactly once: a batch counts with its checkpoint."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer

from harvest_lib.batching.batch_size import LARGEST_BATCH, LARGEST_TRANSACTION, BatchSize
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.parked_ids import ParkedIds
from harvest_lib.checkpoints.subscription_rows import check_subscription
from harvest_lib.clock import boot_seconds
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect, translated
from harvest_lib.delivery import Topics
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
)
from harvest_lib.grants import harvester_needs, require_grants
from harvest_lib.harvester.added_partitions import Memory, PartitionWatch
from harvest_lib.harvester.compacted_topics import refuse_compacted
from harvest_lib.harvester.engine import Callbacks, Check, Engine, check_parked, make_loop, make_size, marking_checks
from harvest_lib.harvester.factory import (
    make_batch_source,
    make_checkpoints,
    make_guarantee,
    make_kafka_store,
    make_parking,
    make_selection,
    make_topics,
    subscription_of,
)
from harvest_lib.harvester.maintenance import Maintenance
from harvest_lib.harvester.other_readers import before_term, refuse_readers_now
from harvest_lib.harvester.pools import make_rivals
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.transactions import prepare_transactions
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Term
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox import (
    OutboxTable,
    Restamping,
    check_column_mapping,
    create_beside,
    translate_table_errors,
)
from harvest_lib.outbox.durable import require_durable
from harvest_lib.outbox.identity import check_identities
from harvest_lib.outbox.replays import Replays
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.stamping import check_replication

_FIRST_ASK_SECONDS, _ASK_SECONDS = 3.0, 30.0
"""A standby checks that the leaders deliver as it would: seconds until the first check, and between later ones."""


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
    ) -> None:
        self._config = config
        self._table = table
        self._pool = pool
        self._producer_provider = producer_provider
        self._consumer_provider = consumer_provider
        is_seen_once = config.delivery == "transactional" and not config.mode.marks  # which purges what it marks
        most = LARGEST_TRANSACTION if is_seen_once else LARGEST_BATCH
        self._sizes: dict[int, BatchSize] = defaultdict(partial(make_size, config, most))
        self._topics: dict[int, Topics] = defaultdict(partial(make_topics, config))  # troubles outlive a term
        self._ask_at = boot_seconds() + _FIRST_ASK_SECONDS
        self._rivals: Rivals | None = None
        # One for all terms: it knows what it has complained of.
        self._maintenance = Maintenance(config, table)

    def check(self, connection: psycopg.Connection[Any]) -> None:
        try:
            self._check(connection)
        except DatabaseAccessDenied:
            require_grants(connection, harvester_needs(self._table, self._config.mode))
            raise

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        if self._config.mode.marks:
            self._table.check(connection)
            if self._config.mode.parks_rows:
                check_parked(connection, self._table)
        else:
            require_durable(connection, str(self._table))
            self._check_columns(connection)
            if self._config.columns is None:
                self._table.check_sequence(connection)
        check_all_rows(connection, [self._table.identifier])
        with suppress(DatabaseAccessDenied):
            create_beside(connection, self._table)
        for _, check in self.checks(connection):
            check()
        self._refuse_rivals(connection)
        if self._config.delivery == "transactional":
            with suppress(KafkaAccessDenied):  # which the next step says, with what would do without
                self._refuse_another(lost=True)  # before a topic is made by a name that is wrong
            prepare_transactions(self._config, self._producer_provider)
        if self._config.delivery == "sequenced":
            refuse_compacted(connection, self._table, self._config.subscription, make_topics(self._config))

    def _check_columns(self, connection: psycopg.Connection[Any]) -> None:
        if self._config.columns is not None:
            check_column_mapping(connection, self._table, self._config.columns)
        elif self._config.mode.marks:
            self._table.check_columns(connection)
        else:
            self._table.check_native(connection)

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
        if self._config.mode.marks:
            return [*marking_checks(connection, self._config, table), *checks]
        if self._config.columns is None:  # one that was begun has to be finished
            checks = [
                ("no rows from logical replication", lambda: check_replication(connection, table)),
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
            refuse = partial(self._refuse_another, range(self._config.shards), lost=True, tell=False)
            checks.append(("the checkpoints in Kafka are of this outbox", refuse))
        else:  # a leader finds out by itself
            checks.append(("the server has what the checkpoints have passed", self._refuse_regressed))
        return checks

    def _refuse_rivals(self, connection: psycopg.Connection[Any], *, tell: bool = True) -> None:
        if self._pool is not None:  # one for all terms, as above
            self._rivals = self._rivals or make_rivals(self._config, self._pool())
            self._rivals.refuse(connection, tell=tell)

    def _check_grants(self, connection: psycopg.Connection[Any]) -> None:
        """Raise DatabaseAccessDenied for operations that will be refused: later that would be waited out."""
        config, table = self._config, self._table
        pool = self._pool() if self._pool is not None else None
        checkpoints = make_checkpoints(config, table, config.source, 0, pool)
        if config.mode.marks:  # the table's own check has asked for the rest
            with closing(checkpoints), checkpoints.rehearsed():
                return
        rows = make_selection(config, table)
        places = ParkedIds(checkpoints, table.parked_ids.identifier, table.subscriptions.identifier, rows)
        with closing(checkpoints), checkpoints.rehearsed():
            places.load(each=False)
            places.add([])
            places.release([])
        with translated():
            connection.execute(rows.fill("SELECT {columns} FROM {table} LIMIT 0"), {})

    def _refuse_another(self, shards: Iterable[int] = (0,), *, lost: bool = False, tell: bool = True) -> None:
        """Raise CheckpointError if the names that we use in Kafka are another outbox's, or, where `lost` is asked for,
        if the checkpoint is not under them; ServerRegressed if the server lacks what Kafka's checkpoint has passed:
        before anybody is fenced. The leader of each shard finds the same by itself, later."""
        config = self._config
        providers = {"consumer_provider": self._consumer_provider, "producer_provider": self._producer_provider}
        for shard in shards:
            checkpoints = make_checkpoints(config, self._table, config.source, shard)
            with closing(checkpoints):
                store = make_kafka_store(config, self._table, checkpoints, shard, **providers)
                store.refuse_another(lost=lost, tell=tell)

    def _refuse_regressed(self) -> None:
        """Raise ServerRegressed if the server lacks what a checkpoint in Postgres has passed."""
        for shard in range(self._config.shards):
            checkpoints = make_checkpoints(self._config, self._table, self._config.source, shard)
            with closing(checkpoints):
                checkpoints.require(checkpoints.look(), tell=False)

    def stand_by(self) -> None:
        if boot_seconds() < self._ask_at:
            return
        self._ask_at = boot_seconds() + _ASK_SECONDS
        away = (DatabaseUnavailable, DatabaseAccessDenied, KafkaUnavailable, KafkaAccessDenied)
        with suppress(*away), self._translate_table_errors():
            with connect(self._config.data_source.conninfo()) as connection:
                self._refuse_rivals(connection)
            if self._config.delivery == "transactional":
                self._refuse_another()

    def _translate_table_errors(self) -> AbstractContextManager[None]:
        table = self._table
        parked = [table.parked] if self._config.mode.parks_rows else []
        tables = [table, table.subscriptions, table.parked_ids, *parked]
        return translate_table_errors(self._config.data_source.conninfo, tables, self._check_columns)

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
        guarantee = make_guarantee(
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
            guarantee=guarantee,
            parking=make_parking(config, table, checkpoints, topics, source),
            topics=topics,
            size=self._sizes[term.shard],
            translate_errors=self._translate_table_errors,
        )

    def backlog_age_seconds(self, connection: psycopg.Connection[Any]) -> float:
        if self._config.mode.marks:
            return self._table.oldest_age_seconds(connection)
        return StatusReader(connection, self._config).oldest_age_seconds()


def _check_filled(connection: psycopg.Connection[Any], table: OutboxTable, subscription: str) -> None:
    Replays(table).require_filled(connection, subscription)
