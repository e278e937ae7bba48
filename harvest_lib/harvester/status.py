"""The status of an outbox: its backlog, the number of delivered records, its leaders.

The status is read from Postgres. Kafka is queried for leaders elected with NELI, and for open transactions. Reading
does not disturb harvesters, and works if none is running.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from psycopg import sql

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import DatabaseAccessDenied, KafkaError, OutboxTableError, TransactionOpen
from harvest_lib.harvester.assembly.choices import chosen, not_chosen, read_choices
from harvest_lib.harvester.assembly.factory import make_selection
from harvest_lib.harvester.assembly.pools import pool_at
from harvest_lib.harvester.housekeeping.added_partitions import added_of
from harvest_lib.kafka_client import topic_partitions
from harvest_lib.kafka_offsets.open_transactions import settled_ends
from harvest_lib.leadership import lock_holder
from harvest_lib.leadership.group_members import members
from harvest_lib.leadership.leader_topic import topic_trouble
from harvest_lib.leadership.pool import SUBSCRIPTION, Pool, conflict_in_group
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.segments import detached_segments
from harvest_lib.outbox.segments.held import Held, held_segments
from harvest_lib.outbox.sizes import Sizes, read_sizes
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.backlog import MOST, Backlog, backlog_of_table, total
from harvest_lib.subscriptions.shards import SubscriptionShard

_PURGED = "SELECT coalesce(pg_stat_get_tuples_deleted(to_regclass(%s)), 0)"
_GROUP_TIMEOUT_SECONDS = 5.0
_OFFSETS_TIMEOUT_SECONDS = 2.0
_OPEN_SECONDS = 3.0
"""Transactions that are open for longer are reported. A harvester's own transactions are open for less time."""
SAMPLED = 1_000
"""Maximum number of records to count for metrics and the progress line, which read the backlog often."""
_FEWEST_SAMPLED = 50
"""Minimum for the number of records to count in each shard, if a subscription has many shards."""

# Columns: the leader if it still leads, the rival if it was refused in the last ten minutes, topics, shard.
_RIVALS = """
SELECT CASE WHEN EXISTS (
         SELECT FROM pg_stat_activity WHERE application_name = 'harvest leader ' || (leader ->> 'leader_id')
       ) THEN leader END,
       CASE WHEN (leader -> 'rival' ->> 'at')::timestamptz > clock_timestamp() - interval '10 minutes'
       THEN leader -> 'rival' END,
       leader -> 'topics',
       shard
FROM {table} WHERE subscription = %s
"""

Read = tuple[SubscriptionShard, Backlog]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaders:
    """The leaders of an outbox. `by_shard` names the leader of each shard, or is None for a shard without a leader. In
    an election through Kafka, the name is the client id and host of the group member that owns the shard's partition.
    In other elections, it is the name that the process has stored, or, without a stored name, the session that holds
    the lock. `members` is the number of processes in the pool, None if not counted. `trouble` is the reason if Kafka
    did not answer. `notes` are reasons for a missing leader, and other pools."""

    by_shard: list[str | None]
    members: int | None = None
    trouble: str | None = None
    notes: Sequence[str] = ()


class StatusReader:
    """Reads the status of a configuration's outbox through a connection. All calls raise HarvestError if they fail."""

    def __init__(self, connection: psycopg.Connection[Any], config: HarvestConfig) -> None:
        self._connection = connection
        self._config = config
        self._table = OutboxTable.parse(config.outbox_table)
        check_all_rows(connection, [self._table.identifier])  # the backlog would not include hidden rows
        self._selection = make_selection(config, self._table)
        self._subscriptions = (
            Subscriptions(connection, self._table.placed(connection), self._selection)
            if self._table.beside(connection, "subscriptions") is not None
            else None
        )

    def shards(self, name: str | None = None) -> Sequence[SubscriptionShard]:
        """Return the shards of the subscription `name`, or of all subscriptions of this table."""
        return self._subscriptions.shards(name) if self._subscriptions is not None else []

    def ours(self, shards: Sequence[SubscriptionShard]) -> list[SubscriptionShard]:
        """Return the shards of the configured subscription, without shards that are marked instead of read from a
        position."""
        return [each for each in shards if each.name == self._config.subscription and not each.marks]

    def read(self, shards: Sequence[SubscriptionShard], most: int = MOST) -> list[Read]:
        """Return each shard with its backlog. The backlog of a shard is counted up to `most` records."""
        if self._subscriptions is None:
            return []
        return [(each, self._subscriptions.lag(each, most)) for each in shards]

    def oldest_age_seconds(self) -> float:
        """Return the age of the oldest record in the configured subscription's backlog, 0 without a backlog.

        Reads few records, unless none of the first records is for the subscription.
        """
        ours = self.configured()
        found = self.sampled(ours)
        return (found if found.counted or not found.is_estimate else self.waiting(self.read(ours))).age_seconds

    def waiting(self, read: Sequence[Read] | None = None) -> Backlog:
        """Return the backlog of the configured subscription, or of the whole table if the subscription has no row.
        Counts up to `MOST` records for each shard.

        Raises OutboxTableError if the table is mapped by `columns` and the subscription has never read it: the backlog
        is then unknown.
        """
        return self._total(self.read(self.configured()) if read is None else read, MOST)

    def sampled(self, shards: Sequence[SubscriptionShard]) -> Backlog:
        """Return the backlog of the configured subscription among `shards`, counted up to about `SAMPLED` records."""
        ours = self.ours(shards)
        return self._total(self.read(ours, max(_FEWEST_SAMPLED, SAMPLED // max(1, len(ours)))), SAMPLED)

    def configured(self) -> list[SubscriptionShard]:
        """Read and return the shards of the configured subscription. With `source: mark`, return an empty list, since
        the role need not have the right to read the table of subscriptions."""
        return [] if self._config.source == "mark" else self.ours(self.shards(self._config.subscription))

    def _total(self, read: Sequence[Read], most: int) -> Backlog:
        ours = self.ours([shard for shard, _ in read])
        if ours:
            found = total([each for shard, each in read if shard in ours])
            return replace(found, epoch=max(each.epoch for each in ours))
        if self._config.columns is not None:
            raise OutboxTableError(
                f"the backlog of {self._table} is unknown",
                evidence=f"the subscription {self._config.subscription!r} never read it",
                next_step="start a harvester, or correct `subscription`",
            )
        return backlog_of_table(self._connection, self._selection, most)

    def is_known(self, shards: Sequence[SubscriptionShard]) -> bool:
        """Return True if the backlog can be computed: see `waiting`."""
        return self._config.columns is None or bool(self.ours(shards))

    def done(self, shards: Sequence[SubscriptionShard]) -> int:
        """Return the number of purged records, plus the number of records that the configured subscription has
        delivered from its positions. Only the difference between two results is meaningful."""
        with translated():
            row = self._connection.execute(_PURGED, (str(self._table),)).fetchone()
        passed = sum(each.checkpoint.delivered for each in self.ours(shards) if each.checkpoint is not None)
        return passed + (int(row[0]) if row is not None else 0)

    def delivered(self) -> int:
        """Return `done` of the configured subscription. Only the difference between two results is meaningful."""
        return self.done(self.configured())

    def sizes(self) -> Sizes:
        """Return the sizes on disk of the outbox and of its database."""
        return read_sizes(self._connection, self._table.placed(self._connection))

    def held(self) -> Mapping[str, Held]:
        """Return the segments that each subscription prevents from being dropped. Empty if the table has no segments,
        or if this role may not see them."""
        if self._config.columns is not None or self._table.kind(self._connection) != "native":
            return {}
        with suppress(DatabaseAccessDenied, OutboxTableError):
            placed = self._table.placed(self._connection)
            return held_segments(self._connection, placed, keep_seconds=self._config.keep_segments_seconds)
        return {}

    def detached(self) -> list[str]:
        """Return notes on segments that an operator has detached."""
        if self._config.columns is not None or self._table.kind(self._connection) != "native":
            return []
        try:
            found = detached_segments(self._connection, self._table)
        except DatabaseAccessDenied as error:  # for example, a role that marks a native table
            role = sql.Identifier(self._connection.info.user)
            return [
                f"whether segments were detached by hand is not known: {error.evidence}; "
                f"as its owner: GRANT SELECT ON {self._table.segments} TO {role.as_string(None)}"
            ]
        return [f"the segment {each}" for each in found]

    def open_transactions(self) -> list[str]:
        """Return notes on open transactions that hide records from read-committed consumers, in the topics that the
        subscription's leaders have stored. If Kafka does not answer, the note is the reason."""
        led = {topic for _, _, topics, _ in self._led() if isinstance(topics, Mapping) for topic in topics}
        kafka = self._config.kafka_settings(for_producer=False)
        try:
            there = topic_partitions(kafka, timeout_seconds=_OFFSETS_TIMEOUT_SECONDS) if led else {}
            places = {(topic, partition) for topic in led for partition in range(there.get(topic, 0))}
            settled_ends(kafka, places, patience_seconds=_OPEN_SECONDS, timeout_seconds=_OFFSETS_TIMEOUT_SECONDS)
        except TransactionOpen as error:
            return [f"{error.evidence}; {error.next_step}"]
        except KafkaError as error:
            return [f"whether transactions are open in its topics is not known: {error.cause}: {error.evidence}"]
        return []

    def leaders(self) -> Leaders:
        """Return the leaders. In an election through Kafka, query the group's coordinator for the owners of the leader
        topic's partitions; otherwise query Postgres."""
        config = self._elected()
        match config.leadership:
            case "solo":
                found = Leaders(by_shard=self._named(config, None))
            case "postgres":  # a single lock for all shards
                holder = lock_holder(self._connection, config.leader_group_id, str(self._table))
                found = Leaders(by_shard=[None] * config.shards if holder is None else self._named(config, holder))
            case "neli":
                found = self._owners(config)
            case "auto":
                raise not_chosen("leadership")
        return replace(found, notes=[*found.notes, *self._rivals(config)])

    def _named(self, config: HarvestConfig, otherwise: str | None) -> list[str | None]:
        """Return the stored name of each shard's leader, which is also its name in its log and metrics. For a shard
        without a stored name, return `otherwise`."""
        names = {
            shard: pool.process
            for leader, _, _, shard in self._led()
            if (pool := Pool.of_json(leader)) is not None
            and pool.leadership == config.leadership
            and pool.group in {"", config.leader_group_id}  # empty under `solo`
        }
        return [names.get(shard) or otherwise for shard in range(config.shards)]

    def _elected(self) -> HarvestConfig:
        """Return the configuration with `auto` resolved for this table."""
        return chosen(self._config, read_choices(self._config, self._connection, self._table))

    def _owners(self, config: HarvestConfig) -> Leaders:
        kafka, topic, shards = config.kafka_settings(for_producer=False), config.leader_topic, config.shards
        try:
            found = members(kafka, config.leader_group_id, timeout_seconds=_GROUP_TIMEOUT_SECONDS)
        except KafkaException as error:
            failure = error.args[0]  # the error's name is added, since its text may be only the name of the request
            trouble = f"{failure.str().rstrip(': ')} ({failure.name()})"
            return Leaders(by_shard=[None] * shards, trouble=trouble)
        owners = {shard: each for each in found for owned, shard in each.owned if owned == topic}
        notes = [f"{each.client_id}@{each.host}: {each.trouble}" for each in found if each.trouble]
        troubled = topic_trouble(kafka, topic, shards)
        if not found:
            never = troubled if troubled and topic not in _topics(kafka) else ""
            runs = "has run yet" if never else "runs now"
            notes.append(f"no harvester of the group {config.leader_group_id!r} {runs}: start one with `harvest run`")
            troubled = "" if never else troubled
        if troubled and troubled not in " ".join(notes):
            notes.append(troubled)
        if any(each.pool is not None for each in found):
            ours = pool_at(config, self._connection)
            pools = [each.pool for each in found if each.pool is not None and each.owned]
            conflicts = [conflict for each in pools if (conflict := conflict_in_group(ours, each)) is not None]
            notes += dict.fromkeys(conflict.cause for conflict in conflicts)
        by_shard = [
            f"{owners[each].client_id}@{owners[each].host}" if each in owners else None for each in range(shards)
        ]
        return Leaders(by_shard=by_shard, members=len(found), notes=notes)

    def _rivals(self, config: HarvestConfig) -> list[str]:
        """Return notes on other pools and on added partitions, from the rows of the configured subscription."""
        rows = self._led()
        pools = [(Pool.of_json(leader), Pool.of_json(rival)) for leader, rival, *_ in rows]
        added = {str(each) for _, _, topics, _ in rows for each in added_of(topics)}
        notes = {_rival_note(led, rival) for led, rival in pools if rival is not None}
        for led, _ in pools:
            # A configuration without a group belongs to no pool, for example a configuration only for `harvest status`.
            ours = (config.leadership, config.leader_group_id)
            if led is not None and config.leadership != "solo" and (led.leadership, led.group) != ours:
                notes.add(f"another pool harvests this subscription: {led}")
        return sorted(notes | added)

    def _led(self) -> Sequence[tuple[Any, Any, Any, int]]:
        """Return the rows of the configured subscription: leader, refused rival, stored topics, shard."""
        if self._subscriptions is None:
            return []
        statement = sql.SQL(_RIVALS).format(
            table=in_statement(self._table.placed(self._connection).subscriptions.identifier)
        )
        with translated():
            return self._connection.execute(statement, (self._config.subscription,)).fetchall()


def _rival_note(led: Pool | None, rival: Pool) -> str:
    if led is not None and led.differences(rival) & SUBSCRIPTION:
        return f"another pool tried to harvest {rival.subscription!r} in this election, and was refused: {rival}"
    if led is not None and led.is_one_election(rival):
        return f"a process of this pool would deliver by {rival.delivery!r}, not by {led.delivery!r}: {rival}"
    return f"another pool tried to harvest this subscription, and was refused: {rival}"


def _topics(kafka: Mapping[str, object]) -> Collection[str]:
    try:
        return topic_partitions(kafka)
    except KafkaError:
        return ()
