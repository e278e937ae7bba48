"""The pool of this process: its identity, its election, and the detection of other pools."""

import logging
from collections.abc import Callable
from typing import Any, assert_never

import psycopg
from confluent_kafka import Consumer, KafkaException, Producer

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import PoolConflict
from harvest_lib.harvester.assembly.choices import not_chosen
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider, cluster_id
from harvest_lib.leadership import Leadership, Neli, PostgresLeadership, Solo
from harvest_lib.leadership.group_members import members
from harvest_lib.leadership.kafka_probe import KafkaProbe
from harvest_lib.leadership.last_leaders import SubscriptionRows
from harvest_lib.leadership.neli_settings import NeliSettings
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.postgres import PostgresLeadershipSettings
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.identity import database_of
from harvest_lib.postgres.database import connect

_log = logging.getLogger(__name__)

ELECTION_UNKNOWN = (
    "make sure that no process of this pool elects through Kafka (`leadership: neli`, or goharvest); so that this can "
    "be checked, grant Describe on the group"
)
"""The next step if Kafka does not report whether the group of the pool has members."""

_STALE_SECONDS = 15.0
"""A leader does not count as alive if its connection was unused for this time."""


def make_rivals(config: HarvestConfig, pool: Pool) -> Rivals:
    """Return the object that detects other pools which harvest the same subscription."""
    return Rivals(
        pool,
        OutboxTable.parse(config.outbox_table).subscriptions.identifier,
        config.subscription,
        stale_seconds=max(_STALE_SECONDS, 2 * config.session_timeout_seconds),
    )


def read_pool(config: HarvestConfig) -> Pool:
    """Return the pool that a process with this configuration belongs to. Queries Postgres; also queries Kafka if the
    election or the fencing uses Kafka."""
    with connect(config.data_source.conninfo()) as connection:
        return pool_at(config, connection)


def pool_at(config: HarvestConfig, connection: psycopg.Connection[Any]) -> Pool:
    """Return the pool that a process with this configuration belongs to. Uses a connection to the outbox's database."""
    information, table = connection.info, OutboxTable.parse(config.outbox_table)
    neli = config.leadership == "neli"
    return Pool(
        leadership=config.leadership,
        group=config.leader_group_id if config.leadership != "solo" else "",
        leader_topic=config.leader_topic if neli else "",
        cluster=cluster_id(config.kafka_settings(for_producer=False)) if neli else "",
        process=config.name,
        server=f"{information.host}:{information.port}/{information.dbname}",
        database=database_of(connection),
        table=".".join(table.placed(connection).parts),
        subscription=config.subscription if config.mode.keeps_checkpoints else "",
        delivery=config.delivery,
        fence=_fence(config),
    )


def _fence(config: HarvestConfig) -> str:
    """Return a text that names what fences the predecessor of a leader: see `leadership.last_leaders`. Return an empty
    text if nothing fences it. Nothing fences a leader that marks: only the leader id protects marked records, and a
    late leader may still take its own id for valid."""
    if config.mode.marks:
        return ""
    match config.delivery:
        case "transactional":
            kafka = config.kafka_settings(for_producer=False)
            return f"transactional ids of {config.checkpoint_topic} in {cluster_id(kafka)}"
        case "sequenced":
            return "epoch"
        case "barrier" | "pipelined":
            return ""
        case "auto":
            raise not_chosen("delivery")
        case other:
            assert_never(other)


def _subscription_rows(config: HarvestConfig, pool: Pool) -> SubscriptionRows:
    table = OutboxTable.parse(config.outbox_table)
    return SubscriptionRows(
        table=table.subscriptions.identifier,
        subscription=config.subscription,
        shards=config.shards,
        fence=pool.fence,
        outbox=table.identifier if config.columns is None else None,
    )


def make_leadership(
    config: HarvestConfig,
    consumer_provider: KafkaConsumerProvider = Consumer,
    producer_provider: KafkaProducerProvider = Producer,
    pool: Callable[[], Pool] | None = None,
) -> Leadership:
    """Return the election that the setting `leadership` names."""
    limits = config.limits
    # After this time the loop has ended, or all records in the producer's queue have expired.
    quiesce_timeout_seconds = max(2 * limits.drain_interval_seconds, config.delivery_timeout_seconds + 1)
    match config.leadership:
        case "solo":
            return Solo(config.shards)
        case "postgres":
            return PostgresLeadership(
                PostgresLeadershipSettings(
                    group=config.leader_group_id,
                    outbox=str(OutboxTable.parse(config.outbox_table)),
                    shards=config.shards,
                    heartbeat_timeout_seconds=limits.heartbeat_timeout_seconds,
                    min_poll_interval_seconds=limits.min_poll_interval_seconds,
                    session_timeout_seconds=config.session_timeout_seconds,
                    quiesce_timeout_seconds=quiesce_timeout_seconds,
                    io_error_backoff_seconds=limits.io_error_backoff_seconds,
                ),
                config.data_source.conninfo(),
                rows=_subscription_rows(config, pool()) if pool is not None and config.mode.keeps_checkpoints else None,
                kafka_silent_seconds=KafkaProbe(config.kafka_settings(for_producer=False)).silent_seconds,
            )
        case "neli":
            return Neli(
                NeliSettings(
                    topic=config.leader_topic,
                    group_id=config.leader_group_id,
                    shards=config.shards,
                    create_topic=config.create_leader_topic,
                    heartbeat_timeout_seconds=limits.heartbeat_timeout_seconds,
                    min_poll_interval_seconds=limits.min_poll_interval_seconds,
                    poll_duration_seconds=limits.poll_duration_seconds,
                    session_timeout_seconds=config.session_timeout_seconds,
                    quiesce_timeout_seconds=quiesce_timeout_seconds,
                ),
                {"client.id": config.name, **config.kafka_settings(for_producer=False)},
                consumer_provider=consumer_provider,
                producer_provider=producer_provider,
                pool=pool,
            )
        case "auto":
            raise not_chosen("leadership")
        case other:
            assert_never(other)


def refuse_group(config: HarvestConfig) -> str:
    """Raise PoolConflict if the consumer group of the pool has members. Called if this process would lead by the lock
    in Postgres. If Kafka does not report the members, log and return the reason; else return an empty text.

    goharvest elects through Kafka, as does a pool with `leadership: neli`. An election through Kafka and an election
    through Postgres do not see each other, and a leader that marks stores no row by which it could be detected.
    """
    group = config.leader_group_id
    try:
        found = members(config.kafka_settings(for_producer=False), group)
    except KafkaException as error:
        reason = str(error.args[0].str())
        _log.warning("former_election_unknown", extra={"group": group, "reason": reason, "next_step": ELECTION_UNKNOWN})
        return reason
    if not found:
        return ""
    unknown = Pool(leadership="neli", group=group, process=found[0].client_id)
    named = ", ".join(sorted(f"{each.client_id}@{each.host}" for each in found))
    raise PoolConflict(
        f"processes of this pool elect through Kafka, and this one would lead by the lock in Postgres: {named}",
        evidence=f"the consumer group {group!r} has {len(found)} members; `leadership: auto` chose `postgres` here, "
        "which takes no part in that election",
        next_step="stop those processes, then start this one; or let it join their election: `leadership: neli` and "
        "the `delivery` of those processes",
        theirs=next((each.pool for each in found if each.pool is not None), unknown).as_json(),
    )
