"""SQL condition for the records of an outbox that a subscription has delivered, for statements that read the outbox."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import CheckpointError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.source.filters import shard_conditions
from harvest_lib.source.selection import Selection
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.shards import SubscriptionShard

_VISIBLE = "pg_visible_in_snapshot({}, {}::pg_snapshot)"


def shards_of(connection: psycopg.Connection[Any], outbox: OutboxTable, name: str) -> Sequence[SubscriptionShard]:
    """Return the state of each shard of a subscription; empty if the outbox has no subscriptions.

    Raises CheckpointError if the outbox has only other subscriptions, and DatabaseAccessDenied if row security hides
    rows from this role.
    """
    if outbox.beside(connection, "subscriptions") is None:
        return ()
    placed = outbox.placed(connection)
    reading = Subscriptions(connection, placed, Selection(table=outbox.identifier))
    shards = reading.shards(name)
    check_all_rows(connection, [placed.subscriptions.identifier])
    if not shards and (others := sorted({each.name for each in reading.shards()})):
        raise CheckpointError(
            f"there is no subscription {name!r} of {outbox}",
            evidence=f"there are {', '.join(others)}",
            next_step="name one of them (`subscription`, --subscription)",
        )
    return shards


def delivered(shards: Sequence[SubscriptionShard], columns: Mapping[str, sql.Composable]) -> sql.Composable:
    """Return an SQL condition that is true for records that `shards` have delivered or parked. `columns` contains the
    SQL expressions of `id`, `transaction_id` and `kafka_key`."""
    passed = []
    for each in shards:
        hold = sql.Literal(each.retention_hold)
        conditions = [
            sql.SQL(_VISIBLE).format(columns["transaction_id"], sql.Literal(each.low_watermark)),
            *([sql.SQL("{} < {}").format(columns["id"], hold)] if each.retention_hold is not None else []),
            *shard_conditions(each.shard, each.shards, columns),
        ]
        passed.append(sql.SQL("({})").format(sql.SQL(" AND ").join(conditions)))
    return sql.SQL(" OR ").join(passed) if passed else sql.SQL("false")
