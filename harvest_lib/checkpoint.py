"""Where subscriptions stand: one row each, and one per shard, in the table `<outbox>_subscriptions`.

Promises
- Epochs fence: whoever leads raises the row's epoch first, and only the holder of the present one saves. A deposed
  leader's save changes nothing, and it learns that it was deposed.
- A checkpoint never goes backwards within a generation: each is numbered, and a lower number is refused. Rewinding
  raises the generation, which deposes the leader as well.
- A save is on disk when it returns.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.database import connect, in_statement, translated

Position = Mapping[str, Any]

_LEAD = """
INSERT INTO {table} AS s (subscription, shard, shards, source, epoch, leader_id)
VALUES (%(subscription)s, %(shard)s, %(shards)s, %(source)s, 1, %(leader_id)s)
ON CONFLICT (subscription, shard) DO UPDATE SET epoch = s.epoch + 1, leader_id = excluded.leader_id, updated_at = now()
RETURNING generation, epoch, shards, source, checkpoint
"""

_SAVE = """
UPDATE {table} SET seen = %(seen)s::pg_snapshot, holds = %(holds)s, checkpoint = %(checkpoint)s, updated_at = now()
WHERE subscription = %(subscription)s AND shard = %(shard)s
  AND generation = %(generation)s AND epoch = %(epoch)s
  AND coalesce((checkpoint ->> 'number')::bigint, 0) <= %(number)s
"""

_LEADS = """
SELECT FROM {table} WHERE subscription = %(subscription)s AND shard = %(shard)s
  AND generation = %(generation)s AND epoch = %(epoch)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One reader of one outbox: its name, its share of the keys, and the kind of its positions."""

    name: str = "default"
    shard: int = 0
    shards: int = 1
    source: str = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a subscription stands: the `number`-th checkpoint of its generation, and the source's position, None before
    the first. `seen` and `holds` are for retention."""

    generation: int
    number: int = 0
    position: Position | None = None
    seen: str = "1:1:"
    holds: int | None = None
    kept_in: str = "postgres"
    """Where the one that counts is: `postgres`, or `kafka`, of which this is a mirror."""

    def as_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "number": self.number,
            "position": self.position,
            "kept_in": self.kept_in,
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Checkpoint":
        return cls(
            generation=value["generation"],
            number=value["number"],
            position=value["position"],
            kept_in=value["kept_in"],
        )


class Checkpoints:
    """The checkpoints of one subscription and shard, in Postgres. Used by one thread at a time.

    All calls raise DatabaseUnavailable when the database cannot be asked; the next one connects anew.
    """

    def __init__(self, conninfo: str, table: sql.Identifier, subscription: Subscription) -> None:
        self._conninfo = conninfo
        self._subscription = subscription
        names = {"table": in_statement(table)}
        self._lead, self._save, self._leads = (sql.SQL(each).format(**names) for each in (_LEAD, _SAVE, _LEADS))
        self._row = {"subscription": subscription.name, "shard": subscription.shard}
        self._connection: psycopg.Connection[Any] | None = None
        self._generation = self._epoch = 0

    def lead(self, leader_id: UUID) -> Checkpoint:
        """Raise the epoch, deposing whoever led before, and return where the subscription stands."""
        subscription = self._subscription
        values = {**self._row, "shards": subscription.shards, "source": subscription.source, "leader_id": leader_id}
        with translated():
            row = self._connected().execute(self._lead, values).fetchone()
        assert row is not None  # noqa: S101 - it is inserted or updated
        self._generation, self._epoch, _, _, saved = row
        checkpoint = Checkpoint.of_json(saved) if saved else Checkpoint(generation=self._generation)
        return replace(checkpoint, generation=self._generation)

    @property
    def generation(self) -> int:
        """Return the generation that `lead` found."""
        return self._generation

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint; False if this leader was deposed, or the checkpoint is older than the one there."""
        values = {
            **self._held(),
            "seen": checkpoint.seen,
            "holds": checkpoint.holds,
            "number": checkpoint.number,
            "checkpoint": Jsonb(checkpoint.as_json(), dumps=_dumps),
        }
        with translated():
            return self._connected().execute(self._save, values, prepare=True).rowcount == 1

    def leads(self) -> bool:
        """Tell whether nobody has raised the epoch since `lead`."""
        with translated():
            return self._connected().execute(self._leads, self._held()).rowcount == 1

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _held(self) -> dict[str, Any]:
        return {**self._row, "generation": self._generation, "epoch": self._epoch}

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
            with translated():
                self._connection.execute("SET statement_timeout = '30s'")
        return self._connection


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
