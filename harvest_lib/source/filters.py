"""Filters of a subscription: by shard, by topic and key, and by an optional end.

The filter is stored only in the subscription's rows, and the leader reads it there. Statements contain the values of a
filter as quoted literals only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.config import ColumnMapping
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.replays import Replays
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.selection import COLUMNS, FilterLookup, Selection, SubscriptionFilter, columns_of
from harvest_lib.source.sharding import shard_expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A shard of a subscription: the subscription's name, the shard's number, the number of shards, and the name of the
    source that makes the positions."""

    name: str = "default"
    shard: int = 0
    shards: int = 1
    source: str = "snapshot"


_ROW = "SELECT topics, keys, until::text FROM {table} WHERE subscription = %(name)s AND shard = %(shard)s"

_IS_BYTES = "SELECT atttypid = 'bytea'::regtype FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s"


def subscription_filter(
    outbox: OutboxTable, subscription: Subscription, mapping: ColumnMapping | None = None
) -> FilterLookup:
    """Return a function that narrows a selection to the filter in the subscription's row. If the subscription is a
    replay, the function raises CheckpointError until the replay is filled. After that, it replaces the topics of
    records by the replay's topics.

    With `mapping`, the function also looks up whether the value column is `bytea`.
    """
    statement = sql.SQL(_ROW).format(table=in_statement(outbox.subscriptions.identifier))

    def lookup(connection: psycopg.Connection[Any], selection: Selection) -> SubscriptionFilter:
        with translated():
            row = connection.execute(statement, {"name": subscription.name, "shard": subscription.shard}).fetchone()
            columns = selection.columns if mapping is None else _columns(connection, selection.table, mapping)
        topics, keys, until = row if row is not None else (None, None, None)
        conditions = [*selection.conditions, *filter_conditions(topics, keys, selection.columns)]
        if mapping is None and (replay := Replays(outbox).require_filled(connection, subscription.name)) is not None:
            columns = {**columns, "kafka_topic": replay.topic}
        return SubscriptionFilter(
            selection=replace(selection, columns=columns, conditions=conditions),
            until=Snapshot.parse(until) if until is not None else None,
        )

    return lookup


def _columns(
    connection: psycopg.Connection[Any], table: sql.Identifier, mapping: ColumnMapping
) -> Mapping[str, sql.Composable]:
    values = (table.as_string(connection), mapping.kafka_value if isinstance(mapping.kafka_value, str) else "")
    row = connection.execute(_IS_BYTES, values).fetchone()
    return columns_of(mapping, value_is_bytes=row is not None and bool(row[0]))


def filter_conditions(
    topics: Sequence[str] | None, keys: str | None, columns: Mapping[str, sql.Composable] = COLUMNS
) -> list[sql.Composable]:
    """Return two SQL conditions: the topic is among `topics`, and the key matches the Postgres regular expression
    `keys`. If `topics` or `keys` is None, its condition is left out."""
    conditions: list[sql.Composable] = []
    if topics is not None:
        listed = sql.SQL(", ").join(in_statement(sql.Literal(each)) for each in topics)
        conditions.append(sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(columns["kafka_topic"], listed))
    if keys is not None:
        conditions.append(sql.SQL("{} ~ {}").format(columns["kafka_key"], in_statement(sql.Literal(keys))))
    return conditions


def shard_conditions(shard: int, shards: int, columns: Mapping[str, sql.Composable] = COLUMNS) -> list[sql.Composable]:
    """Return the SQL condition that a key belongs to the shard, in a list. With a single shard the list is empty."""
    if shards == 1:
        return []
    return [sql.SQL("{} = {}").format(shard_expression(columns["kafka_key"], shards), sql.Literal(shard))]
