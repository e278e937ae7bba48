"""Preconditions of a harvester: checks of its tables and of both servers, for a start and for `harvest check`.

Promises
- A start and `harvest check` run the same checks. So a check that succeeds in `harvest check` also succeeds at a start.
- A start first creates missing side tables. `harvest check` creates no table, and skips the checks of tables that a
  start would create.
- A check changes nothing, with one exception: a start that is refused stores the reason in the subscription's row.
"""

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer
from psycopg import sql

from harvest_lib.checkpoints.subscription_rows import check_subscription
from harvest_lib.config import HarvestConfig
from harvest_lib.config.choices import ReadingMode
from harvest_lib.delivery import Topics
from harvest_lib.errors import DatabaseAccessDenied, KafkaAccessDenied, OutboxTableError, TopicCompacted
from harvest_lib.grants import harvester_needs, require_grants
from harvest_lib.harvester.assembly.factory import (
    make_checkpoints,
    make_kafka_store,
    make_selection,
    make_topics,
    subscription_of,
)
from harvest_lib.harvester.assembly.other_readers import refuse_readers
from harvest_lib.harvester.assembly.pools import make_rivals
from harvest_lib.harvester.assembly.transactions import prepare_transactions
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox import OutboxTable, check_column_mapping, create_beside
from harvest_lib.outbox.durable import require_durable
from harvest_lib.outbox.identity import check_identities
from harvest_lib.outbox.marks import rehearse_marks
from harvest_lib.outbox.native_table import check_beside, check_former_names
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.outbox.parking.leader_ids import ParkedIds
from harvest_lib.outbox.relocation import Restamping
from harvest_lib.outbox.replays import Replays
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.stamping import check_replication
from harvest_lib.postgres.database import connect, in_statement
from harvest_lib.postgres.translation import translated

Check = tuple[str, Callable[[], object]]
"""A precondition: its name, and a function that raises HarvestError if the precondition does not hold."""

_MAY_CREATE = """
SELECT has_schema_privilege(n.oid, 'CREATE') AND pg_has_role(c.relowner, 'USAGE')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""

_FILTERED = "SELECT DISTINCT unnest(topics) FROM {} WHERE subscription = %s"


class Preconditions:
    """The preconditions of a configuration with `auto` resolved. `mode` is by default the reading mode of the
    configuration; the mode differs if an embedding program provides parts. Without `pool`, other pools are not
    detected."""

    def __init__(
        self,
        config: HarvestConfig,
        table: OutboxTable,
        *,
        mode: ReadingMode | None = None,
        pool: Callable[[], Pool] | None = None,
        consumer_provider: KafkaConsumerProvider = Consumer,
        producer_provider: KafkaProducerProvider = Producer,
    ) -> None:
        self._config = config
        self._table = table
        self._mode = mode or config.mode
        self._pool = pool
        self._consumer_provider = consumer_provider
        self._producer_provider = producer_provider
        self._are_made = False  # True after a start has created the side tables
        self._rivals: Rivals | None = None  # the same object serves all terms, so that a rival is logged once

    def require(self, connection: psycopg.Connection[Any]) -> None:
        """Create missing side tables, run the checks of a start, and raise the error of the first check that fails."""
        config = self._config
        try:
            _run(self.of_table(connection))
            self._make_tables(connection)
            _run(self.of_contents(connection))
        except DatabaseAccessDenied:
            require_grants(connection, harvester_needs(self._table, self._mode))
            raise
        if not self._mode.keeps_checkpoints:
            return
        self.refuse_rivals(connection)
        if config.delivery == "transactional":
            with suppress(KafkaAccessDenied):  # the next call raises it again, with an alternative in its next step
                self.refuse_another(lost=True)  # checked before a topic is created under a wrong name
            prepare_transactions(config, self._producer_provider)
        if config.delivery == "sequenced":
            _refuse_compacted(connection, self._table, config.subscription, make_topics(config))

    def of_table(self, connection: psycopg.Connection[Any]) -> list[Check]:
        """Return the checks of the outbox itself."""
        table = self._table
        checks: list[Check] = [("columns", lambda: self.check_columns(connection))]
        if self._config.columns is None:
            checks.append(("sequence", lambda: table.check_sequence(connection)))
        return [
            *checks,
            ("durability", lambda: require_durable(connection, str(table))),
            ("row-level security", lambda: check_all_rows(connection, [table.identifier])),
        ]

    def check_columns(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError if the table's columns do not fit the configuration."""
        if self._config.columns is not None:
            check_column_mapping(connection, self._table, self._config.columns)
        elif self._mode.marks:
            self._table.check_columns(connection)
        else:
            self._table.check_native(connection)

    def _make_tables(self, connection: psycopg.Connection[Any]) -> None:
        """Create missing side tables. Raise OutboxTableError if this role may not create a missing table."""
        makers = [ParkedRecords(self._table).create] if self._mode.parks_rows else []
        makers += [partial(create_beside, outbox=self._table)] if self._mode.keeps_checkpoints else []
        for make in makers:
            try:
                make(connection)
            except DatabaseAccessDenied:  # may be raised even if the table exists
                self.check_tables_beside(connection, makes=False)
        self._are_made = True

    def check_tables_beside(self, connection: psycopg.Connection[Any], *, makes: bool = True) -> None:
        """Raise OutboxTableError if a side table lacks columns, or if it is missing. With `makes`, a missing table is
        accepted if this role may create it, since a start would create it."""
        table, user = self._table, connection.info.user
        needed = [table.subscriptions, table.parked_ids] if self._mode.keeps_checkpoints else []
        needed += [table.parked] if self._mode.parks_rows else []
        missing = [each for each in needed if not each.exists(connection)]
        if self._mode.keeps_checkpoints:
            placed = table.placed(connection)
            check_beside(connection, placed)
            if table.parked_ids in missing:
                check_former_names(connection, placed)
        if missing and not (makes and self._may_make(connection)):
            raise OutboxTableError(
                f"{', '.join(map(str, missing))}: missing beside {table}",
                evidence=f"{user!r} does not own {table}, and may not create them",
                next_step="as the owner, run `harvest init`, then the output of `harvest grants postgres`",
            )

    def _may_make(self, connection: psycopg.Connection[Any]) -> bool:
        with translated():
            return connection.execute(_MAY_CREATE, (str(self._table),)).fetchone() == (True,)

    def of_contents(self, connection: psycopg.Connection[Any]) -> list[Check]:
        """Return the checks of the contents of existing tables, and of the rights on them."""
        table, mode = self._table, self._mode
        subscription = subscription_of(self._config, self._config.source)
        checks: list[Check] = []
        if mode.parks_rows and self._is_there(connection, table.parked):
            checks.append(("the table of parked records", lambda: ParkedRecords(table).check(connection)))
        if mode.marks:
            tables = [table.identifier, *([table.parked.identifier] if mode.parks_rows else [])]
            checks += [
                ("all rows can be marked", lambda: check_all_rows(connection, tables, ("SELECT", "UPDATE", "DELETE"))),
                ("no subscription reads it", lambda: refuse_readers(connection, self._config, table)),
                ("marks, tried out and undone", lambda: rehearse_marks(connection, table)),
            ]
        if mode.reads_segments:
            checks += [
                ("no rows from logical replication", lambda: check_replication(connection, table)),
                ("no restamping that was begun", lambda: Restamping(outbox=table).check_not_needed(connection)),
                (
                    "no replay that was begun",
                    lambda: Replays(table).require_filled(connection, subscription.name),
                ),
            ]
        if self._has_subscriptions(connection):
            places = table.subscriptions.identifier
            checks += [
                ("the subscription", lambda: check_subscription(connection, places, subscription)),
                ("rights, tried out and undone", lambda: self._rehearse(connection)),
                (
                    "the server is that of the checkpoints",
                    lambda: check_identities(connection, places, table.identifier, subscription.name),
                ),
            ]
        return checks

    def _has_subscriptions(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if the reading mode stores checkpoints, and the table of subscriptions exists."""
        return self._mode.keeps_checkpoints and self._is_there(connection, self._table.subscriptions)

    def _is_there(self, connection: psycopg.Connection[Any], table: OutboxTable) -> bool:
        return self._are_made or table.exists(connection)

    def with_kafka(self, connection: psycopg.Connection[Any]) -> list[Check]:
        """Return the checks that concern both Postgres and Kafka, each with separate connections. If the reading mode
        stores no checkpoints, return an empty list."""
        if not self._mode.keeps_checkpoints:
            return []

        def refuse_rivals() -> None:
            with connect(self._config.data_source.conninfo()) as own:
                self.refuse_rivals(own, tell=False)

        is_there = self._has_subscriptions(connection)
        checks: list[Check] = [("no other pool leads", refuse_rivals)] if is_there else []
        if self._config.delivery == "transactional":
            refuse = partial(self.refuse_another, range(self._config.shards), lost=True, tell=False)
            checks.append(("the checkpoints in Kafka are of this outbox", refuse))
        elif is_there:  # only for `harvest check`: at a start, the leader itself makes this check
            checks.append(("the server has all records before the checkpoints", self._refuse_regressed))
        return checks

    def refuse_rivals(self, connection: psycopg.Connection[Any], *, tell: bool = True) -> None:
        """Raise PoolConflict if another pool leads the subscription."""
        if self._pool is not None:
            self._rivals = self._rivals or make_rivals(self._config, self._pool())
            self._rivals.refuse(connection, tell=tell)

    def _rehearse(self, connection: psycopg.Connection[Any]) -> None:
        """Try the operations of a leader and undo them. Raises DatabaseAccessDenied if Postgres refuses an operation.
        Without this rehearsal, the start would succeed, and a leader would wait and retry."""
        config, table = self._config, self._table
        pool = self._pool() if self._pool is not None else None
        checkpoints = make_checkpoints(config, table, config.source, 0, pool)
        if self._mode.marks or not self._is_there(connection, table.parked_ids):  # marking has a check of its own
            with closing(checkpoints), checkpoints.rehearsed():
                return
        rows = make_selection(config, table)
        names = table.parked_ids.identifier, table.subscriptions.identifier
        places = ParkedIds(checkpoints, *names, rows.table, rows.columns)
        with closing(checkpoints), checkpoints.rehearsed():
            places.load(each=False)
            places.add([])
            places.release([])
        with translated():
            connection.execute(rows.fill("SELECT {columns} FROM {table} LIMIT 0"), {})

    def refuse_another(self, shards: Iterable[int] = (0,), *, lost: bool = False, tell: bool = True) -> None:
        """Raise CheckpointError if a checkpoint in Kafka, under the configured names, belongs to another outbox. With
        `lost`, also raise CheckpointError if Kafka lacks a checkpoint. Raise ServerRegressed if the server lacks
        records before a checkpoint in Kafka. These checks fence no leader; the leader of each shard repeats them
        later."""
        config = self._config
        providers = {"consumer_provider": self._consumer_provider, "producer_provider": self._producer_provider}
        for shard in shards:
            checkpoints = make_checkpoints(config, self._table, config.source, shard)
            with closing(checkpoints):
                store = make_kafka_store(config, self._table, checkpoints, shard, **providers)
                store.refuse_another(lost=lost, tell=tell)

    def _refuse_regressed(self) -> None:
        """Raise ServerRegressed if the server lacks records before a checkpoint in Postgres."""
        for shard in range(self._config.shards):
            checkpoints = make_checkpoints(self._config, self._table, self._config.source, shard)
            with closing(checkpoints):
                checkpoints.require(checkpoints.look(), tell=False)


def _run(checks: Iterable[Check]) -> None:
    for _, check in checks:
        check()


def filtered_topics(connection: psycopg.Connection[Any], subscriptions: OutboxTable, subscription: str) -> set[str]:
    """Return the topics that the filter of a subscription names; none without a filter. Raises psycopg's errors."""
    statement = sql.SQL(_FILTERED).format(in_statement(subscriptions.identifier))
    return {topic for (topic,) in connection.execute(statement, (subscription,))}


def _refuse_compacted(
    connection: psycopg.Connection[Any], outbox: OutboxTable, subscription: str, topics: Topics
) -> None:
    """Raise TopicCompacted if the filter of the subscription names a compacted topic. Kafka's internal topics do not
    count, since their records are parked.

    Compacted topics have two problems: they refuse messages without a key, such as acknowledgements, and compaction
    would remove pending records that a reader still has to find. Without a filter, a record for such a topic is parked
    and does not stop the delivery, see `harvest_lib.delivery.Topics`.
    """
    with translated():
        found = filtered_topics(connection, outbox.subscriptions, subscription)
    if compacted := topics.compacted(found):
        raise TopicCompacted(
            f"the topic {compacted[0]!r} is compacted, and `delivery: sequenced` cannot use it: acknowledgements have "
            "no key, and compaction removes records that are still to be acknowledged",
            evidence=f"`cleanup.policy` has `compact`, of {len(compacted)} of the {len(found)} topics that the "
            f"subscription {subscription!r} is limited to",
            next_step=f"kafka-configs.sh --bootstrap-server … --alter --topic {compacted[0]} --add-config "
            "cleanup.policy=delete; or use `delivery: transactional`",
        )
