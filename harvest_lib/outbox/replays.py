"""Replays, listed in the table `<outbox>_replays`: subscriptions that first receive records delivered in the past.

A replay *fills* a subscription: it sends all records of a snapshot to other topics. No harvester delivers the
subscription until its row in this table is marked as filled. Then a harvester continues from the snapshot, and sends to
the same topics.
Replay and harvester both read the names of the topics from this table, so they cannot disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from harvest_lib.errors import CheckpointError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_CREATE = """
CREATE TABLE IF NOT EXISTS {replays} (
  subscription TEXT PRIMARY KEY,
  topics       JSONB NOT NULL,
  parts        INTEGER NOT NULL,
  sender       UUID NOT NULL DEFAULT gen_random_uuid(),
  snapshot     TEXT,
  begun_at     TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  filled_at    TIMESTAMP WITH TIME ZONE
)"""

_READERS = """
SELECT DISTINCT r.rolname
FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS a JOIN pg_roles AS r ON r.oid = a.grantee
WHERE c.oid = to_regclass(%s) AND a.privilege_type = 'SELECT'
"""

_GET = """
SELECT subscription, topics, parts, sender, snapshot, begun_at, filled_at FROM {replays} WHERE subscription = %s
"""
_INSERT = "INSERT INTO {replays} (subscription, topics, parts) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_ANCHOR = "UPDATE {replays} SET snapshot = %s WHERE subscription = %s AND snapshot IS NULL"
_FILLED = """
UPDATE {replays} SET filled_at = coalesce(filled_at, clock_timestamp()) WHERE subscription = %s AND sender = %s
"""
_FORGET = "DELETE FROM {replays} WHERE subscription = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxReplay:
    """A replay that fills a subscription. `topics` maps the topic in a record to the topic that receives it. `parts` is
    the number of parts that keys are divided into. `sender` identifies the sender of the replay. `snapshot` is the
    snapshot, with its server, from which the harvester continues; None until it is stored."""

    subscription: str
    topics: Mapping[str, str]
    parts: int
    sender: UUID
    snapshot: str | None
    begun_at: datetime
    filled_at: datetime | None

    @property
    def topic(self) -> sql.Composable:
        """SQL expression for the topic that receives a record. It is used instead of the column `kafka_topic`."""
        cases = [
            sql.SQL(" WHEN {} THEN {}").format(in_statement(sql.Literal(one)), in_statement(sql.Literal(other)))
            for one, other in sorted(self.topics.items())
        ]
        return sql.SQL("CASE kafka_topic{} ELSE kafka_topic END").format(sql.Composed(cases))


@dataclass(frozen=True, slots=True)
class Replays:
    """The replays of an outbox. All calls raise DatabaseError if the database fails."""

    outbox: OutboxTable

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the table of replays, and grant SELECT on it to all roles that have SELECT on the table of
        subscriptions. Needs the owner's rights."""
        self._execute(connection, _CREATE)
        readers = self._execute(connection, _READERS, str(self.outbox.subscriptions)).fetchall()
        for (reader,) in readers:
            with translated():
                grant = sql.SQL("GRANT SELECT ON {} TO {}")
                connection.execute(grant.format(self.outbox.replays.identifier, sql.Identifier(reader)))

    def get(self, connection: psycopg.Connection[Any], subscription: str) -> OutboxReplay | None:
        """Return the replay that fills or filled a subscription, or None."""
        if not self.outbox.replays.exists(connection):
            return None
        cursor = self._execute(connection, _GET, subscription)
        cursor.row_factory = class_row(OutboxReplay)
        found: OutboxReplay | None = cursor.fetchone()
        return found

    def begin(
        self, connection: psycopg.Connection[Any], subscription: str, topics: Mapping[str, str], parts: int
    ) -> None:
        """Add the replay of a subscription, unless there is one already. From now on no harvester delivers the
        subscription, until the replay is filled."""
        self._execute(connection, _INSERT, subscription, Jsonb(dict(topics)), parts)

    def anchor(self, connection: psycopg.Connection[Any], subscription: str, snapshot: str) -> None:
        """Store the snapshot up to which the replay fills the subscription, unless a snapshot is stored already."""
        self._execute(connection, _ANCHOR, snapshot, subscription)

    def filled(self, connection: psycopg.Connection[Any], replay: OutboxReplay) -> None:
        """Mark the replay as filled, so that a harvester may deliver the subscription. Raises CheckpointError if the
        replay was removed in the meantime."""
        if not self._execute(connection, _FILLED, replay.subscription, replay.sender).rowcount:
            raise CheckpointError(
                f"the replay {replay.subscription!r} was given up while it went on",
                evidence=f"{self.outbox.replays} has no replay of the sender {replay.sender}: `harvest subscriptions "
                "remove` was run meanwhile",
                next_step="empty its topics, and begin again",
            )

    def forget(self, connection: psycopg.Connection[Any], subscription: str) -> None:
        """Delete the row of a subscription's replay, if there is one."""
        if self.outbox.replays.exists(connection):
            self._execute(connection, _FORGET, subscription)

    def require_filled(self, connection: psycopg.Connection[Any], subscription: str) -> OutboxReplay | None:
        """Return the replay that filled a subscription, or None if the subscription has no replay. Raises
        CheckpointError if the replay is not filled yet."""
        replay = self.get(connection, subscription)
        if replay is not None and replay.filled_at is None:
            raise CheckpointError(
                f"the subscription {subscription!r} is being filled with records delivered before",
                evidence=f"{self.outbox.replays} lists it since {replay.begun_at:%Y-%m-%d %H:%M:%S%z}",
                next_step=f"let `python -m harvest_lib.spark.replay --subscription {subscription}` end; or give it up: "
                f"`harvest subscriptions remove {subscription}`",
            )
        return replay

    def _execute(self, connection: psycopg.Connection[Any], query: str, *values: object) -> psycopg.Cursor[Any]:
        with translated():
            statement = sql.SQL(query).format(replays=in_statement(self.outbox.replays.identifier))
            return connection.execute(statement, values)
