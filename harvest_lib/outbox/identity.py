"""Identity of an outbox, independent of its name and schema: server, database and table.

The identity is (system identifier, oid of the database, oid of the table), written as `7421…/5/16400`. It does not
change when the table is renamed or moved to another schema. `harvest migrate` turns the old table into a segment of a
new table. The identity of the old table then still counts as an identity of the outbox.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import CheckpointError, ServerRegressed
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_DATABASE = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database())
"""
# The cast raises an error if the table does not exist or is hidden from this role.
_IDENTITY = f"{_DATABASE}, %s::text::regclass::oid::bigint"

_IS_SEGMENT = "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = %s AND inhparent = %s)"

_SAVED = "SELECT checkpoint FROM {} WHERE subscription = %s AND checkpoint IS NOT NULL"


@dataclass(frozen=True, slots=True)
class OutboxIdentity:
    """The identity of an outbox: system identifier, oid of the database, oid of the table."""

    system: str
    database: int
    table: int

    @classmethod
    def parse(cls, text: str) -> "OutboxIdentity":
        """Parse the text that `str` returns. Raises ValueError for any other text."""
        system, database, table = text.split("/")
        return cls(system, int(database), int(table))

    def __str__(self) -> str:
        return f"{self.system}/{self.database}/{self.table}"


def database_of(connection: psycopg.Connection[Any]) -> str:
    """Return the identity of the database: the first two parts of the identity of every table in it."""
    with translated():
        (row,) = connection.execute(_DATABASE)
    return f"{row[0]}/{row[1]}"


def identity_of(connection: psycopg.Connection[Any], outbox: sql.Identifier) -> OutboxIdentity:
    """Return the identity of a table. Raises OutboxTableError if the table is missing, or hidden from this role."""
    with translated():
        (row,) = connection.execute(_IDENTITY, (outbox.as_string(None),))
    return OutboxIdentity(*row)


def difference(connection: psycopg.Connection[Any], saved: Mapping[str, Any], now: OutboxIdentity) -> str:
    """Compare the outbox in a checkpoint with the outbox `now`. Return `server` if they are on different servers,
    `table` if they are different tables of a server, and an empty text if they are the same outbox."""
    before = _identity_in(saved, now)
    if before.system != now.system:
        return "server"
    if before == now:
        return ""
    if before.database != now.database:
        return "table"
    with translated():
        row = connection.execute(_IS_SEGMENT, (before.table, now.table)).fetchone()
    return "" if row is not None and row[0] else "table"


def _identity_in(saved: Mapping[str, Any], now: OutboxIdentity) -> OutboxIdentity:
    """Return the identity in a checkpoint. If the checkpoint has no readable identity, return an identity that no table
    of this server has."""
    try:
        return OutboxIdentity.parse(str(saved.get("identity")))
    except ValueError:
        return OutboxIdentity(now.system, 0, 0)


def check_identity(
    connection: psycopg.Connection[Any], saved: Mapping[str, Any], now: OutboxIdentity, subscription: str
) -> None:
    """Check that the checkpoint `saved`, stored in Postgres, belongs to the outbox `now`. Raise ServerRegressed if it
    came from another server, and CheckpointError if it belongs to another outbox or has no identity."""
    different = difference(connection, saved, now)
    before = saved.get("identity", "an outbox that it does not name")
    evidence = f"it is of {before}, this outbox is {now} (system identifier/database/table)"
    if different == "server":
        raise ServerRegressed(
            "this is not the server that the checkpoint came from",
            evidence=evidence,
            next_step="correct `dataSource`; if the outbox was moved, by dump and restore, pg_upgrade or replication: "
            "`harvest subscriptions move`",
        )
    if different == "table":
        raise CheckpointError(
            f"the checkpoint of the subscription {subscription!r} in Postgres belongs to another outbox",
            evidence=evidence,
            next_step="check `dataSource` with its search_path, and `outboxTable`; if the other is still harvested, "
            "give this one another `leaderGroupID` or `subscription`; if it is the same outbox, recreated on this "
            f"server: `harvest subscriptions rewind {subscription} --to mirror`",
        )


def check_identities(
    connection: psycopg.Connection[Any], table: sql.Identifier, outbox: sql.Identifier, subscription: str
) -> None:
    """Check the checkpoints of all shards of a subscription, each as `check_identity` does. `table` is the table of
    subscriptions."""
    statement = sql.SQL(_SAVED).format(in_statement(table))
    with translated():
        rows = connection.execute(statement, (subscription,)).fetchall()
    for (saved,) in rows:
        if isinstance(saved, dict):  # any other value is reported when the checkpoint is loaded
            check_identity(connection, saved, identity_of(connection, outbox), subscription)
