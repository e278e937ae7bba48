"""The rows of a subscription: a lock on all its rows, and the check that shards and source are as configured."""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import CheckpointError
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.source.filters import Subscription

# The statement locks rows instead of taking an advisory lock: any role that may connect, such as a writer of the
# outbox, could hold an advisory lock forever.
_LOCK = "SELECT shard FROM {table} WHERE subscription = %(subscription)s ORDER BY shard FOR UPDATE"

_KINDS = "SELECT DISTINCT shards, source FROM {table} WHERE subscription = %(subscription)s ORDER BY shards, source"


def lock_subscription(connection: psycopg.Connection[Any], table: sql.Identifier, name: str) -> bool:
    """Lock all rows of a subscription until the end of the transaction. Until then, no process can begin to lead,
    rewind, move or reshard it. Return False if it has no row. `table` is the table of subscriptions."""
    locked = connection.execute(sql.SQL(_LOCK).format(table=in_statement(table)), {"subscription": name})
    return locked.fetchone() is not None


def check_subscription(connection: psycopg.Connection[Any], table: sql.Identifier, subscription: Subscription) -> None:
    """Raise CheckpointError if the rows have another number of shards, or another source, than `subscription`."""
    statement = sql.SQL(_KINDS).format(table=in_statement(table))
    with translated():
        kinds = connection.execute(statement, {"subscription": subscription.name}).fetchall()
    name = subscription.name
    for shards, source in kinds:
        if shards != subscription.shards:
            raise CheckpointError(
                f"the subscription {name!r} is divided into {shards}, not {subscription.shards}",
                evidence=f"its rows in {table.as_string(None)} say shards {shards}, the configuration "
                f"{subscription.shards}: a key would change its leader while its records are on their way",
                next_step=f"set `shards: {shards}`, or change the number with "
                f"`harvest subscriptions reshard {name} --shards {subscription.shards}`, which keeps each key's order",
            )
        if source != subscription.source:
            raise CheckpointError(
                f"the position of the subscription {name!r} is one of source {source}, not {subscription.source}",
                evidence=f"its rows in {table.as_string(None)} say so",
                next_step=f"set `source: {source}`, or convert the position, repeating what it cannot express, with "
                f"`harvest subscriptions rewind {name} --to mirror --source {subscription.source}`",
            )
