"""A look at an outbox from outside: what waits, for how long, and who leads. Asks Postgres, and Kafka only for NELI."""

from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.config import HarvestConfig
from harvest_lib.kafka_client import client_settings
from harvest_lib.leadership import lock_holder
from harvest_lib.outbox import OutboxTable
from harvest_lib.parts import make_selection
from harvest_lib.subscriptions import Subscriptions

_GROUP_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is committed and not delivered. `is_estimate`: there may be more. `epoch`: the term's rising number, None
    on goharvest's table, whose terms have only their id."""

    records: int
    age_seconds: float
    is_estimate: bool = False
    epoch: int | None = None


def look(connection: psycopg.Connection[Any], config: HarvestConfig) -> Waiting:
    """Return what waits: for the configured subscription, if the table has it; else everything that is there.

    Raises HarvestError. Counts goharvest's table whole, a native one to 100,000 records.
    """
    table = OutboxTable.parse(config.outbox_table)
    subscriptions = table.subscriptions
    if subscriptions.exists(connection):
        reading = Subscriptions(connection, table.placed(connection), make_selection(config, table))
        shards = [each for each in reading.shards(config.subscription) if each.source != "mark"]
        if shards:
            lags = [reading.lag(each) for each in shards]
            return Waiting(
                records=sum(lag.records for lag in lags),
                age_seconds=max(lag.oldest_age_seconds or 0.0 for lag in lags),
                is_estimate=any(lag.is_estimate for lag in lags),
                epoch=max(each.epoch for each in shards),
            )
    backlog = table.backlog(connection)
    return Waiting(records=backlog.records, age_seconds=backlog.oldest_age_seconds)


def leader(connection: psycopg.Connection[Any], config: HarvestConfig) -> str | None:
    """Return who leads shard 0, as its group or its lock names it; None if nobody does, or nobody can say."""
    match config.leadership:
        case "solo":
            return None
        case "postgres":
            return lock_holder(connection, config.leader_group_id)
        case "neli":
            return _owner(config)


def _owner(config: HarvestConfig) -> str | None:
    group = config.leader_group_id
    admin = AdminClient(client_settings(config.kafka_settings(for_producer=False)))
    try:
        found = admin.describe_consumer_groups([group], request_timeout=_GROUP_TIMEOUT_SECONDS)[group].result()
    except KafkaException:
        return None
    for member in found.members:
        for owned in member.assignment.topic_partitions:
            if owned.topic == config.leader_topic and owned.partition == 0:
                return f"{member.client_id}@{member.host.lstrip('/')}"
    return None
