"""An outbox as it is seen from outside: what waits, how much was done, who leads.

Asks Postgres, and Kafka only who leads under NELI. Whoever harvests is not disturbed, and need not be there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.config import HarvestConfig
from harvest_lib.database import translated
from harvest_lib.errors import OutboxTableError
from harvest_lib.kafka_client import client_settings
from harvest_lib.lag import Lag
from harvest_lib.leadership import lock_holder
from harvest_lib.outbox import OutboxTable
from harvest_lib.parts import make_selection
from harvest_lib.subscriptions import Subscriptions, SubscriptionShard

_PURGED = "SELECT coalesce(pg_stat_get_tuples_deleted(to_regclass(%s)), 0)"
_GROUP_TIMEOUT_SECONDS = 5.0

Read = tuple[SubscriptionShard, Lag]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is committed and not delivered. `is_estimate`: there may be more. `epoch`: the term's rising number, None
    where rows are marked, whose terms have only their id."""

    records: int
    age_seconds: float
    marked: int = 0
    is_estimate: bool = False
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaders:
    """By shard, the client id and host of the group member that owns its partition, or the session that holds its lock;
    None where nobody does. `members`: how many processes are in the pool, None where nobody counts them. `trouble`: why
    Kafka could not say."""

    by_shard: list[str | None]
    members: int | None = None
    trouble: str | None = None


class Outlook:
    """Looks at the outbox of a configuration through one connection. All calls raise HarvestError."""

    def __init__(self, connection: psycopg.Connection[Any], config: HarvestConfig) -> None:
        self._connection = connection
        self._config = config
        self._table = OutboxTable.parse(config.outbox_table)
        self._subscriptions = (
            Subscriptions(connection, self._table.placed(connection), make_selection(config, self._table))
            if self._table.subscriptions.exists(connection)
            else None
        )

    def shards(self, name: str | None = None) -> Sequence[SubscriptionShard]:
        """Return where the subscriptions of this table stand, or those of one name."""
        return self._subscriptions.shards(name) if self._subscriptions is not None else []

    def read(self, shards: Sequence[SubscriptionShard]) -> list[Read]:
        """Return the shards with how far behind they are, counted to 100,000 records each."""
        return [(each, self._subscriptions.lag(each)) for each in shards] if self._subscriptions is not None else []

    def waiting(self, read: Sequence[Read] | None = None) -> Waiting:
        """Return what waits: for the configured subscription, if the table has it; else everything that is there.

        Raises OutboxTableError for a table of another layout that the subscription has never read: nobody knows then.
        """
        if read is None:
            read = self.read(self._ours(self.shards(self._config.subscription)))
        ours = self._ours([shard for shard, _ in read])
        lags = [lag for shard, lag in read if shard in ours]
        if not lags and self._config.columns is not None:
            raise OutboxTableError(
                f"what waits in {self._table} is not known",
                evidence=f"the subscription {self._config.subscription!r} never read it",
                next_step="start a harvester, or correct `subscription`",
            )
        if not lags:
            backlog = self._table.backlog(self._connection)
            return Waiting(records=backlog.records, age_seconds=backlog.oldest_age_seconds, marked=backlog.marked)
        return Waiting(
            records=sum(lag.records for lag in lags),
            age_seconds=max((lag.oldest_age_seconds or 0.0 for lag in lags), default=0.0),
            is_estimate=any(lag.is_estimate for lag in lags),
            epoch=max((each.epoch for each in ours), default=None),
        )

    def is_known(self, shards: Sequence[SubscriptionShard]) -> bool:
        """Tell whether it can be said what waits."""
        return self._config.columns is None or bool(self._ours(shards))

    def done(self, shards: Sequence[SubscriptionShard]) -> int:
        """Return how many records were purged, or delivered by the configured subscription, if it purges nothing: a
        number that means something as the difference of two."""
        with translated():
            row = self._connection.execute(_PURGED, (str(self._table),)).fetchone()
        passed = sum(each.checkpoint.delivered for each in self._ours(shards) if each.checkpoint is not None)
        return passed + (int(row[0]) if row is not None else 0)

    def leaders(self) -> Leaders:
        """Ask the group's coordinator who owns each partition of the leader topic; or Postgres who holds the lock."""
        config = self._config
        match config.leadership:
            case "solo":
                return Leaders(by_shard=[None] * config.shards)
            case "postgres":  # one lock for all shards
                holder = lock_holder(self._connection, config.leader_group_id, str(self._table))
                return Leaders(by_shard=[holder] * config.shards)
            case "neli":
                return _owners(config)

    def _ours(self, shards: Sequence[SubscriptionShard]) -> list[SubscriptionShard]:
        return [each for each in shards if each.name == self._config.subscription and each.source != "mark"]


def _owners(config: HarvestConfig) -> Leaders:
    admin, group = AdminClient(client_settings(config.kafka_settings(for_producer=False))), config.leader_group_id
    try:
        found = admin.describe_consumer_groups([group], request_timeout=_GROUP_TIMEOUT_SECONDS)[group].result()
    except KafkaException as error:
        failure = error.args[0]  # its text may be no more than the name of the request
        trouble = f"{failure.str().rstrip(': ')} ({failure.name()})"
        return Leaders(by_shard=[None] * config.shards, trouble=trouble)
    owners = {
        owned.partition: f"{member.client_id}@{member.host.lstrip('/')}"
        for member in found.members
        for owned in member.assignment.topic_partitions
        if owned.topic == config.leader_topic
    }
    return Leaders(by_shard=[owners.get(shard) for shard in range(config.shards)], members=len(found.members))
