"""Samples for metrics: the backlog of an outbox and the progress of its subscriptions, read at bounded cost.

Promises
- No statement scans the outbox, or a table that grows with it: each reads a bounded number of rows by an index.
- Ages are measured by the database's clock.
- Tables that are missing, or that this role may not read, are left out.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.harvester.assembly.factory import make_selection
from harvest_lib.harvester.housekeeping.added_partitions import Added, read_added
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.segments.held import Held
from harvest_lib.outbox.sizes import Sizes
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record import is_legal_topic
from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.telemetry.counts import OTHER

_COUNTED_PARKED = 10_000
MOST_TOPICS = 20
"""Maximum number of topics that get a separate label in a metric."""

_AGE_OF_ONE = """
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
    """A sample of an outbox. `records` is the size of the backlog, None if it is unknown. The value `mark` changes when
    any process delivers records. `quiet_seconds` is the time since the subscription's row was last updated, 0
    without a row."""

    records: int | None
    is_estimate: bool = False
    age_seconds: float | None = None
    mark: Hashable = None
    quiet_seconds: float = 0.0
    parked: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of parked records for each topic and state. The state is `parked` or `held`."""
    shards: Sequence[SubscriptionShard] = ()
    """The shards of all subscriptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RareSample:
    """The part of a sample that is read only once a minute. `held`: the held segments of each subscription; empty if
    the table has no segments, or if this role may not see them. `sizes`: None before the first answer. `added`: the
    additions of partitions to topics."""

    held: Mapping[str, Held] = field(default_factory=dict)
    sizes: Sizes | None = None
    added: Sequence[Added] = ()


class SampleReader:
    """Reads samples through a connection. Calls that fail raise HarvestError or an error of psycopg."""

    def __init__(self, connection: psycopg.Connection[Any], config: HarvestConfig) -> None:
        self._connection = connection
        self._config = config
        self._outbox = OutboxTable.parse(config.outbox_table).placed(connection)
        self._selection = make_selection(config, self._outbox)
        self._status = StatusReader(connection, config)

    def sample(self) -> OutboxSample:
        """Read and return a sample."""
        shards = self._status.shards()
        parked = {**self._parked("parked"), **self._parked("parked_ids")}
        if not self._status.is_known(shards):  # the table has another layout, and the subscription never read it
            return OutboxSample(records=None, parked=parked, shards=shards)
        waiting = self._status.sampled(shards)
        columns, ours = self._config.columns, self._status.ours(shards)
        mark: Hashable = tuple((each.generation, each.checkpoint and each.checkpoint.number) for each in ours)
        return OutboxSample(
            records=waiting.records,
            is_estimate=waiting.is_estimate,
            age_seconds=waiting.age_seconds if columns is None or columns.create_time is not None else None,
            mark=mark or (waiting.first_id, self._row(sql.SQL(_DELETED), table=str(self._outbox))),
            quiet_seconds=min((each.updated_seconds_ago for each in ours), default=0.0),
            parked=parked,
            shards=shards,
        )

    def rare(self) -> RareSample:
        """Read and return the part of a sample that changes slowly."""
        added: Sequence[Added] = ()
        with suppress(DatabaseAccessDenied, OutboxTableError):
            added = read_added(self._connection, self._outbox, self._config.subscription)
        return RareSample(held=self._status.held(), sizes=self._status.sizes(), added=added)

    def age_of(self, record_id: int) -> float | None:
        """Return the age of a record in seconds; None if the record no longer exists or has no time."""
        row = self._row(self._selection.fill(_AGE_OF_ONE), id=record_id)
        return row[0] if row is not None else None

    def _parked(self, name: Literal["parked", "parked_ids"]) -> dict[tuple[str, str], int]:
        """Count the parked records in a side table, by topic and state. In `parked_ids`, only the configured
        subscription counts."""
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
    """Return the counts by topic and state. The most frequent topics with legal names have their own labels; all other
    topics together have the label `other`."""
    counts: dict[tuple[str, str], int] = {}
    named: set[str] = set()
    for topic, held, count in found:
        if topic not in named and len(named) < MOST_TOPICS and is_legal_topic(topic):
            named.add(topic)
        label = (topic if topic in named else OTHER, "held" if held else "parked")
        counts[label] = counts.get(label, 0) + count
    return counts
