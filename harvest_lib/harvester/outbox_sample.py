"""Samples of the backlog of an outbox and of its subscriptions' progress, by statements of bounded cost.

Promises
- No statement scans the outbox, or any table that grows with it: each reads a bounded number of rows by an index.
- Ages are by the database's clock.
- Tables that this role may not read, or that are missing, are left out.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.config import HarvestConfig
from harvest_lib.database import in_statement, translated
from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.harvester.added_partitions import Added, read_added
from harvest_lib.harvester.factory import make_selection
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.held_segments import Held
from harvest_lib.outbox.sizes import Sizes
from harvest_lib.record import is_legal_topic
from harvest_lib.subscriptions.admin import SubscriptionShard
from harvest_lib.subscriptions.lag import Lag
from harvest_lib.telemetry.counts import OTHER

COUNTED_RECORDS = 1_000
"""Records that wait are counted so far; beyond, their ids tell how many there may be."""
_FEWEST_COUNTED = 50
"""Of each shard, where there are many."""
_COUNTED_PARKED = 10_000
MOST_TOPICS = 20
"""A metric tells so many apart."""

# The first rows by the primary key: purged rows are gone, so all that are there wait.
_HEAD = """
SELECT count(*), min(id)::bigint,
       extract(epoch FROM clock_timestamp() - min(create_time) FILTER (WHERE isfinite(create_time)))::float8
FROM (SELECT {id} AS id, {create_time} AS create_time FROM {table} ORDER BY {id} LIMIT %(most)s + 1) AS head
"""

_NEXT = """
SELECT id::bigint,
       CASE WHEN isfinite(create_time) THEN extract(epoch FROM clock_timestamp() - create_time)::float8 END
FROM (SELECT {id} AS id, {create_time} AS create_time FROM {table} WHERE {id} > %(after)s ORDER BY {id} LIMIT 1) AS next
"""

_LAST_ID = "SELECT max({id})::bigint FROM {table}"

AGE_OF_ONE = """
SELECT CASE WHEN isfinite(create_time) THEN extract(epoch FROM clock_timestamp() - create_time)::float8 END
FROM (SELECT {id} AS id, {create_time} AS create_time FROM {table} WHERE {id} = %(id)s) AS one
"""

_DELETED = """
SELECT coalesce(sum(pg_stat_get_tuples_deleted(relid)), pg_stat_get_tuples_deleted(%(table)s::regclass))::bigint
FROM pg_partition_tree(%(table)s::regclass)
"""

_READABLE = "SELECT coalesce(has_table_privilege(to_regclass(%(table)s), 'SELECT'), false)"

_PARKED = """
SELECT kafka_topic, held, count(*) FROM (SELECT kafka_topic, held FROM {table} {which} LIMIT %(most)s) AS parked
GROUP BY kafka_topic, held ORDER BY count(*) DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSample:
    """One sample of an outbox. `records` is None if the backlog is unknown; `mark` changes with each record that
    anybody delivers. `quiet_seconds`: time since the last checkpoint was written, 0 where there is none."""

    records: int | None
    is_estimate: bool = False
    age_seconds: float | None = None
    mark: Hashable = None
    quiet_seconds: float = 0.0
    parked: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By topic and state, `parked` or `held`."""
    shards: Sequence[SubscriptionShard] = ()
    """Of all subscriptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RareSample:
    """Slowly changing facts, sampled once a minute. `held`: by subscription, empty where there are no segments, or
    they may not be seen. `sizes`: None before the first answer. `added`: topics to which partitions were added."""

    held: Mapping[str, Held] = field(default_factory=dict)
    sizes: Sizes | None = None
    added: Sequence[Added] = ()


class OutboxReader:
    """Reads samples through one connection. All calls raise HarvestError or psycopg's errors."""

    def __init__(self, connection: psycopg.Connection[Any], config: HarvestConfig) -> None:
        self._connection = connection
        self._config = config
        self._outbox = OutboxTable.parse(config.outbox_table).placed(connection)
        self._selection = make_selection(config, self._outbox)
        self._status = StatusReader(connection, config)

    def sample(self) -> OutboxSample:
        """Return what there is now."""
        shards = self._status.shards()
        ours = [each for each in shards if each.name == self._config.subscription and not each.marks]
        parked = {**self._parked("parked"), **self._parked("parked_ids")}
        if ours:
            records, is_estimate, age = self._waiting(ours)
            mark: Hashable = tuple((each.generation, each.checkpoint and each.checkpoint.number) for each in ours)
            quiet = min(each.updated_seconds_ago for each in ours)
        elif self._config.columns is not None:  # a subscription of another layout that was never begun
            return OutboxSample(records=None, parked=parked, shards=shards)
        else:
            first, records, is_estimate, age = self._head()
            row = self._row(sql.SQL(_DELETED), table=str(self._outbox))
            mark, quiet = (first, row), 0.0
        return OutboxSample(
            records=records,
            is_estimate=is_estimate,
            age_seconds=age,
            mark=mark,
            quiet_seconds=quiet,
            parked=parked,
            shards=shards,
        )

    def rare(self) -> RareSample:
        """Return the slowly changing facts."""
        added: Sequence[Added] = ()
        with suppress(DatabaseAccessDenied, OutboxTableError):
            added = read_added(self._connection, self._outbox, self._config.subscription)
        return RareSample(held=self._status.held(), sizes=self._status.sizes(), added=added)

    def age_of(self, record_id: int) -> float | None:
        """Return the age of one record, None if it is gone, or no column says it."""
        row = self._row(self._selection.fill(AGE_OF_ONE), id=record_id)
        return row[0] if row is not None else None

    def _waiting(self, ours: Sequence[SubscriptionShard]) -> tuple[int, bool, float | None]:
        """Return how many records wait for a subscription, whether that is an estimate, and the age of the oldest."""
        most = max(_FEWEST_COUNTED, COUNTED_RECORDS // len(ours))
        records, ages, is_estimate = 0, [], False
        for shard, lag in self._status.read(ours, most):
            if not lag.is_estimate:
                records += lag.records
                ages.append(lag.oldest_age_seconds)
                continue
            is_estimate = True
            first, age = (lag.first_id, lag.oldest_age_seconds) if lag.records else self._first(shard, lag)
            ages.append(age)
            records += max(lag.records, self._ids_from(first) // shard.shards)
        known = [each for each in ages if each is not None]
        has_ages = self._config.columns is None or self._config.columns.create_time is not None
        return records, is_estimate, max(known, default=0.0) if has_ages else None

    def _first(self, shard: SubscriptionShard, lag: Lag) -> tuple[int | None, float | None]:
        """Return id and age of the first record that may wait, where none of those that were checked does: they were
        delivered, of a large snapshot window that is being read; or the subscription is not for them."""
        position = shard.checkpoint.position if shard.checkpoint is not None else None
        after = max((position or {}).get("after", -(2**63)), (lag.first_id or 0) - 1)
        row = self._row(self._selection.fill(_NEXT), after=after)
        return (row[0], None if row[1] is None else max(0.0, row[1])) if row is not None else (None, None)

    def _head(self) -> tuple[int | None, int, bool, float]:
        """Return the first id of a table of which all waits, how many there are, whether that is an estimate, and the
        age of the oldest."""
        row = self._row(self._selection.fill(_HEAD), most=COUNTED_RECORDS)
        count, first, age = row if row is not None else (0, None, None)
        is_estimate = count > COUNTED_RECORDS
        records = max(count, self._ids_from(first)) if is_estimate else count
        return first, records, is_estimate, max(0.0, age or 0.0)

    def _ids_from(self, first: int | None) -> int:
        """Return how many ids there are from one to the last that was committed."""
        row = self._row(self._selection.fill(_LAST_ID))
        return max(0, row[0] - first + 1) if row is not None and row[0] is not None and first is not None else 0

    def _parked(self, name: Literal["parked", "parked_ids"]) -> dict[tuple[str, str], int]:
        """Return counts of parked records in a table, of the configured subscription if it lists several."""
        table = self._outbox.beside(self._connection, name)
        readable = self._row(sql.SQL(_READABLE), table=str(table)) if table is not None else None
        if table is None or readable is None or not readable[0]:
            return {}
        which = "WHERE subscription = %(subscription)s" if name == "parked_ids" else ""
        statement = sql.SQL(_PARKED).format(table=in_statement(table.identifier), which=sql.SQL(which))
        with translated():
            found = self._connection.execute(
                statement, {"most": _COUNTED_PARKED, "subscription": self._config.subscription}
            ).fetchall()
        return _by_topic(found)

    def _row(self, statement: sql.SQL | sql.Composed, **values: object) -> Any:
        with translated():
            return self._connection.execute(statement, values).fetchone()


def _by_topic(found: Sequence[tuple[str, bool, int]]) -> dict[tuple[str, str], int]:
    """Return counts by topic and state, those of the most frequent legal topics; of all others together `other`."""
    counts: dict[tuple[str, str], int] = {}
    named: set[str] = set()
    for topic, held, count in found:
        if topic not in named and len(named) < MOST_TOPICS and is_legal_topic(topic):
            named.add(topic)
        label = (topic if topic in named else OTHER, "held" if held else "parked")
        counts[label] = counts.get(label, 0) + count
    return counts
