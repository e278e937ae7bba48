"""Functions that make the parts of a harvester according to its configuration: source, delivery, store, parking."""

from functools import partial
from typing import assert_never

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parking import BatchParking
from harvest_lib.certificates import Certificates
from harvest_lib.checkpoints.kafka_store import KafkaStore
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.checkpoints.stores import IntentStore, PostgresCheckpointStore, PurgeStore
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import (
    AtLeastOnce,
    BatchDeliverySettings,
    CheckpointPlace,
    Delivery,
    Sequenced,
    Topics,
    Transactional,
    TransactionalProducer,
    acknowledge_again,
)
from harvest_lib.harvester.assembly.choices import not_chosen
from harvest_lib.harvester.assembly.pools import make_rivals
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Term
from harvest_lib.leadership.last_leaders import MARKS
from harvest_lib.leadership.pool import Pool
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking.leader_ids import ParkedIds
from harvest_lib.source import (
    BatchSource,
    ClaimSource,
    MarkPages,
    MarkSource,
    Selection,
    SnapshotSource,
    TransactionIdSource,
)
from harvest_lib.source.filters import Subscription, shard_conditions, subscription_filter
from harvest_lib.source.pg_snapshot import NOTHING
from harvest_lib.source.selection import COLUMNS, columns_of


def make_source(config: HarvestConfig, table: OutboxTable) -> ClaimSource:
    """Return the mark source for `table`, with a table for parked records unless `parking` is `stop`."""
    parked = None if config.parking == "stop" else table.parked.identifier
    return MarkSource(_marking(config), table.identifier, parked)


def _marking(config: HarvestConfig) -> str:
    """Return the connection string. If the user has not set an application name, add the name by which other processes
    recognize a session that marks."""
    return make_conninfo(config.data_source.conninfo(), fallback_application_name=MARKS)


def make_topics(config: HarvestConfig) -> Topics:
    """Return a new `Topics`, which has no information about any topic yet."""
    settings = config.kafka_settings(for_producer=True)
    return Topics(settings, keep_all=config.delivery == "sequenced", own=config.is_own_topic)


def certificates_of(config: HarvestConfig) -> Certificates:
    """Return the certificates that the clients of Kafka and Postgres use with this configuration."""
    kafka = (config.kafka_settings(for_producer=producer) for producer in (False, True))
    return Certificates(*kafka, postgres=conninfo_to_dict(config.data_source.conninfo()))


def refuse_bad_settings(config: HarvestConfig, producer_provider: KafkaProducerProvider) -> None:
    """Raise ConfigError for a setting that librdkafka refuses, before anything starts. If `delivery` is `auto`, call
    this again with the resolved configuration, to check the timeouts of the delivery."""
    settings, topics = _batch_settings(config, producer_provider), make_topics(config)
    if config.delivery == "transactional":
        place = _checkpoint_place(config, 0)
        TransactionalProducer(settings, topics, f"{config.checkpoint_topic}.check", place).discard()
    else:
        AtLeastOnce(settings, topics).abandon()


def make_batch_source(config: HarvestConfig, table: OutboxTable, shard: int) -> BatchSource:
    """Return the source that the setting `source` names, for the records of a shard. A source that marks gets a table
    for parked records if the reading mode parks rows."""
    if config.mode.marks:
        parked = table.parked.identifier if config.mode.parks_rows else None
        source = MarkSource(_marking(config), table.identifier, parked, names_places=True)
        return MarkPages(source, config.limits.mark_backoff_seconds)
    selection = make_selection(config, table, shard)
    make = TransactionIdSource if config.source == "transaction_id" else SnapshotSource
    return make(
        config.data_source.conninfo(),
        selection,
        subscription=config.subscription,
        start=NOTHING if config.start_from == "beginning" else None,
        filter_lookup=subscription_filter(table, subscription_of(config, config.source, shard), config.columns),
    )


def make_selection(config: HarvestConfig, table: OutboxTable, shard: int | None = None) -> Selection:
    """Return the selection of all records, or of the records of a shard, with the column mapping of `columns`."""
    columns = COLUMNS if config.columns is None else columns_of(config.columns)
    conditions = [] if shard is None else shard_conditions(shard, config.shards, columns)
    return Selection(table=table.identifier, columns=columns, conditions=conditions)


def make_delivery(
    config: HarvestConfig,
    table: OutboxTable,
    checkpoints: CheckpointTable,
    topics: Topics,
    shard: int,
    *,
    consumer_provider: KafkaConsumerProvider,
    producer_provider: KafkaProducerProvider,
) -> tuple[Delivery, CheckpointStore]:
    """Return the delivery that the setting `delivery` names, for a shard's batches, and the store of the shard's
    checkpoints."""
    settings = _batch_settings(config, producer_provider)
    acknowledge = partial(acknowledge_again, settings.kafka, provider=producer_provider, topics=topics)
    match config.delivery:
        case "barrier" | "pipelined":
            return AtLeastOnce(settings, topics), PostgresCheckpointStore(checkpoints, acknowledge)
        case "transactional":
            place, first_id = _checkpoint_place(config, shard), f"{config.checkpoint_topic}.{shard}"
            kafka_store = make_kafka_store(
                config,
                table,
                checkpoints,
                shard,
                consumer_provider=consumer_provider,
                producer_provider=producer_provider,
            )
            ids = (first_id, f"{first_id}.2")
            producers = [TransactionalProducer(settings, topics, each, place) for each in ids]
            return Transactional(producers, kafka_store.encode), kafka_store
        case "sequenced":
            store = IntentStore(checkpoints, acknowledge)
            return Sequenced(settings, topics, store.save_pending, store.ask_again), store
        case "auto":
            raise not_chosen("delivery")
        case other:
            assert_never(other)


def make_purging_pages(config: HarvestConfig, source: ClaimSource, term: Term) -> MarkPages:
    """Return the pages of a table that is marked and delivered at least once.

    As soon as another process may lead, the pages mark no more rows, and purge delivered rows only with the delivery
    `barrier`. With `pipelined`, the other process may already have sent the first rows again. If this process then
    purged later rows, consumers would get a repeated row as the last record of its key.
    """
    always = config.delivery == "barrier"
    return MarkPages(
        source,
        config.limits.mark_backoff_seconds,
        names_ids=False,
        may_mark=term.is_live,
        may_purge=lambda: always or term.may_finish(),
    )


def make_purging_delivery(
    config: HarvestConfig,
    topics: Topics,
    pages: MarkPages,
    producer_provider: KafkaProducerProvider,
    delivery: Delivery | None = None,
) -> tuple[Delivery, CheckpointStore]:
    """Return the delivery and the store for a table that is marked and delivered at least once. `delivery` is the
    delivery of an embedding program, if it provides one. The store purges rows instead of storing a checkpoint."""
    return delivery or AtLeastOnce(_batch_settings(config, producer_provider), topics), PurgeStore(pages.purge)


def _batch_settings(config: HarvestConfig, producer_provider: KafkaProducerProvider) -> BatchDeliverySettings:
    return BatchDeliverySettings(
        kafka=config.kafka_settings(for_producer=True),
        delivery_timeout_seconds=config.delivery_timeout_seconds,
        expiry_seconds=config.expiry_seconds if config.delivery == "barrier" else None,
        record_header=config.record_header,
        is_limited=config.limits.max_in_flight_records is not None,
        producer_provider=producer_provider,
    )


def make_kafka_store(
    config: HarvestConfig,
    table: OutboxTable,
    checkpoints: CheckpointTable,
    shard: int,
    *,
    consumer_provider: KafkaConsumerProvider,
    producer_provider: KafkaProducerProvider,
) -> KafkaStore:
    """Return the store that keeps a shard's checkpoints in the checkpoint topic."""
    return KafkaStore(
        checkpoints,
        config.kafka_settings(for_producer=False),
        _checkpoint_place(config, shard),
        f"{conninfo_to_dict(config.data_source.conninfo()).get('dbname', '')}/{table}",
        group=config.leader_group_id,
        acknowledge=partial(acknowledge_again, config.kafka_settings(for_producer=True), provider=producer_provider),
        consumer_provider=consumer_provider,
    )


def make_checkpoints(
    config: HarvestConfig, table: OutboxTable, kind: str, shard: int, pool: Pool | None = None
) -> CheckpointTable:
    """Return the checkpoint table of a shard in Postgres. With a `pool`, the table refuses to depose a leader of
    another pool."""
    subscription, conninfo = subscription_of(config, kind, shard), config.data_source.conninfo()
    rivals = make_rivals(config, pool) if pool is not None else None
    return CheckpointTable(
        conninfo, table.subscriptions.identifier, subscription, outbox=table.identifier, rivals=rivals
    )


def make_parking(
    config: HarvestConfig,
    table: OutboxTable,
    checkpoints: CheckpointTable,
    topics: Topics,
    source: BatchSource,
) -> BatchParking | MarkedParking:
    """Return the part that parks records which can never be sent."""
    if isinstance(source, MarkPages):  # parking must move rows: a purge would delete records parked only by their ids
        return MarkedParking(config.parking, topics, source)
    rows = make_selection(config, table)
    names = table.parked_ids.identifier, table.subscriptions.identifier
    places = ParkedIds(checkpoints, *names, rows.table, rows.columns)
    return BatchParking(config.parking, topics, places)


def subscription_of(config: HarvestConfig, kind: str, shard: int = 0) -> Subscription:
    """Return a shard of the subscription that a configuration names. `kind` is the name of the source that reads it."""
    return Subscription(name=config.subscription, shard=shard, shards=config.shards, source=kind)


def _checkpoint_place(config: HarvestConfig, shard: int) -> CheckpointPlace:
    return CheckpointPlace(topic=config.checkpoint_topic, partition=shard, key=f"{config.subscription}/{shard}")
