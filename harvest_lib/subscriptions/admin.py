"""Operators' commands for the subscriptions of an outbox: list them with their lag, add, rewind and remove them.

Promises
- A command makes all its changes in a single transaction, under a lock that leaders also take before they lead.
- A rewound subscription has a new generation, so positions saved earlier, in Postgres or in Kafka, are not valid any
  more. This holds even if a subscription is removed and added again with the same name, because a generation is never
  lower than the time of its creation, in seconds.
- The snapshot at which a subscription begins is on disk before it is used, and is stored with its WAL location.
- A snapshot belongs to a server. A snapshot of another server is refused. If the outbox came from another server, a
  snapshot that may belong to that server is refused too. The form `LOW_WATERMARK@SYSTEM` names a snapshot's server.
- Pending acknowledgements of delivered records stay pending, even if the subscription is rewound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.checkpoints.record import unreadable
from harvest_lib.checkpoints.subscription_rows import lock_subscription
from harvest_lib.config.subscription_name import NEXT_STEP, is_legal_subscription
from harvest_lib.errors import CheckpointError, ConfigError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.identity import identity_of
from harvest_lib.outbox.replays import Replays
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record import is_legal_topic
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import server_identity, snapshot
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.selection import Selection
from harvest_lib.subscriptions.backlog import MOST, Backlog, backlog_behind, backlog_of_table
from harvest_lib.subscriptions.shards import SubscriptionShard, mirrored, read_shards
from harvest_lib.subscriptions.starting_points import (
    SOURCES,
    anchor,
    position_at,
    refuse_other_servers,
    unknown_source,
)

_MOST_SHARDS = 1000

_NOW = "SELECT extract(epoch FROM clock_timestamp())::bigint"

_ADD = """
INSERT INTO {table} (subscription, shard, shards, source, generation, topics, keys, low_watermark, checkpoint)
VALUES (%(name)s, %(shard)s, %(shards)s, %(source)s, %(generation)s, %(topics)s, %(keys)s, %(low_watermark)s,
  %(checkpoint)s)
"""

_REMOVE = "DELETE FROM {table} WHERE subscription = %(name)s"

_FORGET = "DELETE FROM {parked_ids} WHERE subscription = %(name)s"

_MOVE = """
UPDATE {table} SET source = %(source)s, generation = %(generation)s, low_watermark = %(low_watermark)s,
  retention_hold = %(retention_hold)s, checkpoint = %(checkpoint)s, updated_at = now()
WHERE subscription = %(name)s AND shard = %(shard)s
"""

_BOUNDS = """
SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%s)
"""

_OLDEST = "SELECT {transaction_id}::text AS oldest FROM {table} ORDER BY {transaction_id}, {id} LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of adding or rewinding a subscription. `to` is the snapshot at which the subscription continues, or
    `mirror`."""

    to: str
    generation: int
    is_led: bool
    warnings: Sequence[str]


class Subscriptions:
    """The subscriptions of the outbox that `selection` reads. The caller's `connection` must be in autocommit.

    All calls raise DatabaseError, and CheckpointError if a subscription is not in the state that the call requires.
    """

    def __init__(self, connection: psycopg.Connection[Any], outbox: OutboxTable, selection: Selection) -> None:
        self.connection = connection
        self.outbox = outbox
        self._selection = selection

    # -- queries

    def shards(self, name: str | None = None) -> Sequence[SubscriptionShard]:
        """Return the state of each shard of the subscription `name`, or of all subscriptions."""
        return read_shards(self.connection, self.outbox.subscriptions.identifier, name)

    def get(self, name: str) -> Sequence[SubscriptionShard]:
        """Return the state of each shard of a subscription. Raises CheckpointError if there is no such subscription."""
        if found := self.shards(name):
            return found
        others = sorted({each.name for each in self.shards()})
        raise CheckpointError(
            f"there is no subscription {name!r} of {self.outbox}",
            evidence=f"there are {', '.join(others)}" if others else "there is none at all",
            next_step=f"correct the name, or `harvest subscriptions add {name}`",
        )

    def readable(self, name: str | None = None) -> Sequence[SubscriptionShard]:
        """Return the same as `shards`. Raises CheckpointError if the checkpoint of any shard cannot be read."""
        found = self.shards(name)
        for each in found:
            if each.checkpoint_trouble:
                raise unreadable(each.name, each.shard, each.checkpoint_trouble)
        return found

    def lag(self, shard: SubscriptionShard, most: int = MOST) -> Backlog:
        """Return the backlog of a shard, counted up to `most` records. If the shard's leaders mark rows, the backlog is
        the whole table."""
        if shard.marks:
            return backlog_of_table(self.connection, self._selection, most)
        return backlog_behind(
            self.connection,
            self._selection,
            source=shard.source,
            position=shard.checkpoint.position if shard.checkpoint is not None else None,
            share=(shard.shard, shard.shards),
            topics=shard.topics,
            keys=shard.keys,
            most=most,
        )

    # -- changing

    def add(
        self,
        name: str,
        *,
        start: str = "beginning",
        source: str = snapshot.NAME,
        shards: int = 1,
        topics: Sequence[str] | None = None,
        keys: str | None = None,
    ) -> Moved:
        """Add a subscription. `start` is `beginning`, `now` or a snapshot. The optional filter consists of `topics` and
        of `keys`, a regular expression for keys.

        Raises CheckpointError if a subscription of that name exists, and ConfigError for illegal values.
        """
        self._check(name, source, shards, topics, keys)
        at, place = self.anchor(start)
        with translated(), self.connection.transaction():
            lock_subscription(self.connection, self.outbox.subscriptions.identifier, name)
            if self.shards(name):
                raise CheckpointError(
                    f"there is a subscription {name!r} already",
                    evidence=f"it has rows in {self.outbox.subscriptions}",
                    next_step=f"move it with `harvest subscriptions rewind {name} --to …`, or remove it before",
                )
            generation = self.now()
            for shard in range(shards):
                self.insert(
                    OutboxCheckpoint(
                        generation=generation,
                        number=1,
                        position=position_at(source, at, place.as_json()),
                        low_watermark=str(at),
                        origin=self.placed(None),
                    ),
                    name=name,
                    shard=shard,
                    shards=shards,
                    source=source,
                    topics=[*topics] if topics else None,
                    keys=keys,
                )
        return Moved(to=str(at), generation=generation, is_led=False, warnings=self._dropped_before(at))

    def remove(self, name: str, *, force: bool = False) -> Sequence[SubscriptionShard]:
        """Remove a subscription and return its last state. Without `force`, raises CheckpointError if the subscription
        has a leader."""
        with translated(), self.connection.transaction():
            lock_subscription(self.connection, self.outbox.subscriptions.identifier, name)
            shards = self.get(name)
            led = [each for each in shards if each.is_led]
            if led and not force:
                raise CheckpointError(
                    f"the subscription {name!r} is being harvested",
                    evidence=f"shard {led[0].shard} is led by {led[0].leader_id}",
                    next_step="stop its harvesters first, else they begin it again at their `startFrom`; or --force",
                )
            self.execute(_REMOVE, name=name)
            self.execute(_FORGET, name=name)
            Replays(self.outbox).forget(self.connection, name)
        return shards

    def rewind(self, name: str, *, to: str, source: str | None = None) -> Moved:
        """Set a subscription to `beginning`, `now`, a snapshot, or `mirror`, which is the checkpoint in Postgres.

        `source` is the name of the new source, if the source changes. If positions of the new source cannot express the
        old position, some records are sent twice.
        """
        if source is not None and source not in SOURCES:
            raise unknown_source(source)
        anchor = None if to == "mirror" else self.anchor(to)
        with translated(), self.connection.transaction():
            lock_subscription(self.connection, self.outbox.subscriptions.identifier, name)
            Replays(self.outbox).require_filled(self.connection, name)
            shards = self.get(name)
            generation = max(self.now(), *(each.generation + 1 for each in shards))
            if to == "mirror":
                refuse_other_servers(self.connection, name, [each.checkpoint for each in shards])
            now = server_identity.place(self.connection).as_json() if to == "mirror" else {}
            for each in shards:
                kind = source or each.source
                if anchor is not None and kind not in SOURCES:
                    raise CheckpointError(
                        f"the subscription {name!r} marks and purges: the records that it delivered are gone",
                        evidence=f"its source is {kind}",
                        next_step=f"where its checkpoint topic was lost: `harvest subscriptions rewind {name} --to "
                        "mirror`; to read by snapshots from now on, add `--source snapshot`",
                    )
                if anchor is not None:
                    at, place = anchor
                    checkpoint = OutboxCheckpoint(
                        generation=generation,
                        number=1,
                        position=position_at(kind, at, place.as_json()),
                        low_watermark=str(at),
                        intents=each.checkpoint.intents if each.checkpoint is not None else (),
                    )
                else:
                    checkpoint = mirrored(each, kind, generation, now)
                checkpoint = replace(checkpoint, origin=self.placed(each.checkpoint))
                values = {"source": kind, "generation": generation, "shard": each.shard}
                self.execute(_MOVE, name=name, **values, **_columns(checkpoint))
        warnings = [] if anchor is None else self._dropped_before(anchor[0])
        if any(each.checkpoint_trouble for each in shards):
            warnings.append("unacknowledged records (`delivery: sequenced`) are unknown: the checkpoint was unreadable")
        if source is not None and any(each.source != source for each in shards):
            warnings.append(f"records that a position of {source} cannot express as delivered come again")
        return Moved(
            to=str(anchor[0]) if anchor is not None else "mirror",
            generation=generation,
            is_led=any(each.is_led for each in shards),
            warnings=warnings,
        )

    # -- parts of commands

    def anchor(self, text: str) -> tuple[Snapshot, server_identity.ServerPlace]:
        """Return the snapshot that `text` means, and its WAL location; see `starting_points.anchor`."""
        return anchor(self.connection, self.outbox, text, lambda: [each.checkpoint for each in self.shards()])

    def placed(self, before: OutboxCheckpoint | None) -> dict[str, Any]:
        """Return the origin for a checkpoint with which an operator's command replaces the checkpoint `before`."""
        origin = before.origin if before is not None else {}
        now = str(identity_of(self.connection, self.outbox.identifier))
        was = [each for each in (*origin.get("was", ()), origin.get("identity", now)) if each != now]
        kept = {name: origin[name] for name in ("leaders",) if name in origin}
        return {"identity": now, "placed": True, **({"was": was} if was else {}), **kept}

    def insert(self, checkpoint: OutboxCheckpoint, **row: Any) -> None:
        """Add the row of a shard, in the caller's transaction."""
        values = {**row, "generation": checkpoint.generation, **_columns(checkpoint)}
        del values["retention_hold"]
        self.execute(_ADD, **values)

    def place(self, statement: str, checkpoint: OutboxCheckpoint, **row: Any) -> None:
        """Write a checkpoint into a shard's row with a statement and its parameters, in the caller's transaction."""
        saved = Jsonb(checkpoint.as_json())
        self.execute(statement, generation=checkpoint.generation, checkpoint=saved, **row)

    def execute(self, statement: str, **values: Any) -> psycopg.Cursor[Any]:
        """Run a statement in which {table} is the table of subscriptions, and {parked_ids} the table of parked ids."""
        tables = {"table": self.outbox.subscriptions.identifier, "parked_ids": self.outbox.parked_ids.identifier}
        names = {name: in_statement(each) for name, each in tables.items()}
        return self.connection.execute(sql.SQL(statement).format(**names), values)

    def now(self) -> int:
        """Return the server's time in seconds: the lowest value for a new generation."""
        row = self.connection.execute(_NOW).fetchone()
        return int(row[0]) if row is not None else 0

    def _check(self, name: str, source: str, shards: int, topics: Sequence[str] | None, keys: str | None) -> None:
        if not is_legal_subscription(name):
            raise ConfigError(
                "the name of a subscription is not legal",
                field="subscription",
                next_step=NEXT_STEP,
            )
        if source not in SOURCES:
            raise unknown_source(source)
        if not 1 <= shards <= _MOST_SHARDS:
            raise ConfigError("the number of shards is out of range", field="shards", next_step="choose 1 to 1000")
        for topic in topics or ():
            if not is_legal_topic(topic):
                raise ConfigError(f"{topic[:80]!r} cannot name a topic", field="topics", next_step="correct the topic")
        if keys is not None:
            try:
                self.connection.execute("SELECT '' ~ %s", (keys,))
            except psycopg.DataError as error:
                raise ConfigError(
                    f"Postgres does not take the expression for keys: {str(error).splitlines()[0]}",
                    field="keys",
                    next_step="write a regular expression as Postgres has them, `^order-` for instance",
                ) from error

    def _dropped_before(self, at: Snapshot) -> list[str]:
        """Return a list with a warning if a subscription that begins at `at` may miss records of dropped segments. Else
        return an empty list."""
        with translated():
            bounds = [each for (each,) in self.connection.execute(_BOUNDS, (str(self.outbox),))]
            if not bounds or any("MINVALUE" in each for each in bounds):
                return []
            oldest = self.connection.execute(self._selection.fill(_OLDEST)).fetchone()
        if oldest is not None and at.sees(int(oldest[0])):
            return []
        return ["segments were dropped before the oldest record that is there: their records do not come again"]


def _columns(checkpoint: OutboxCheckpoint) -> dict[str, Any]:
    return {
        "low_watermark": checkpoint.low_watermark,
        "retention_hold": checkpoint.retention_hold,
        "checkpoint": Jsonb(checkpoint.as_json()),
    }
