"""Changing the number of shards of a subscription while it is harvested, each key's order kept.

    stop every shard at a snapshot S ─► each delivers all that S saw, and reports it ─► in one transaction: the old rows
                    ▲                                     │                              go, the new rows begin at S
                    └────── a shard had passed S already ─┘

Promises
- The new shards begin where every old shard ended: nothing is skipped, and nothing comes twice.
- A leader of an old shard, dead or alive, can neither save nor deliver anything that the new shards do not know:
  it has stopped before its row goes, and a later save is refused.
- If the change cannot be done in time, the shards go on as before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psycopg import sql

from harvest_lib.checkpoints.subscription_rows import lock_subscription
from harvest_lib.errors import CheckpointError
from harvest_lib.postgres.database import in_statement, translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.server_identity import ServerPlace
from harvest_lib.source.sharding import shard_expression
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.subscriptions.starting_points import place_of, position_at

_POLL_SECONDS = 0.1

_STOP_AT = "UPDATE {table} SET until = %(until)s WHERE subscription = %(name)s"
# A save that is under way is waited for, and counts.
_FORGET_SENT = """
DELETE FROM {table} WHERE subscription = %(name)s AND shard = %(shard)s AND id = ANY (%(ids)s::bigint[])
"""
_MOVE_PARKED = "UPDATE {table} SET shard = {shard} WHERE subscription = %(name)s"
_REMOVE = "DELETE FROM {table} WHERE subscription = %(name)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """Number of shards before and after, and the snapshot between."""

    before: int
    after: int
    at: str


class Resharding:
    """A change of the number of shards. `tell` gets a text that names the late shards."""

    def __init__(
        self, subscriptions: Subscriptions, name: str, shards: int, *, tell: Callable[[str], None] = lambda _text: None
    ) -> None:
        self._subscriptions = subscriptions
        self._name = name
        self._shards = shards
        self._tell = tell

    def run(self, timeout_seconds: float) -> Resharded:
        """Change it. Raises CheckpointError if the old shards do not stop at the same place in time."""
        deadline = time.monotonic() + timeout_seconds
        before = self._subscriptions.get(self._name)
        self._subscriptions.readable(self._name)
        try:
            if before[0].shards == self._shards:
                return Resharded(before=self._shards, after=self._shards, at="")
            if (at := _resting_place(before)) is not None and (done := self._swap(at, None)) is not None:
                return done
            while True:
                at, place = self._subscriptions.anchor("now")
                self._stop_at(str(at))
                stopped = self._all_come_to(at, deadline)
                if stopped is not None and (done := self._swap(stopped, place if stopped == at else None)) is not None:
                    return done
        finally:
            self._stop_at(None)

    def _stop_at(self, until: str | None) -> None:
        with translated():
            self._subscriptions.execute(_STOP_AT, name=self._name, until=until)

    def _all_come_to(self, at: Snapshot, deadline: float) -> Snapshot | None:
        """Wait until every shard has stopped. Return the place at which all of them stand: the requested place, or the
        place of their last leaders, if the leaders ended without reading it. None if a shard was past it already."""
        reported: set[str] = set()
        while True:
            rows = self._subscriptions.get(self._name)
            if len(rows) == rows[0].shards and all(_has_stopped(each, at) for each in rows):
                return at if all(_stands_at(each, at) for each in rows) else None
            if (resting := _resting_place(rows)) is not None:
                return resting
            waits = _waits_for(rows, at)
            if waits not in reported:
                reported.add(waits)
                self._tell(f"waiting for {waits}")
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"the shards of {self._name!r} did not stop at one place in time; they go on as before",
                    evidence=waits,
                    next_step="let harvesters run that have the old number of shards, or allow more time: --timeout",
                )
            time.sleep(_POLL_SECONDS)

    def _swap(self, at: Snapshot, place: ServerPlace | None) -> Resharded | None:
        """Replace the old rows by the new rows; None if the old rows do not stand there any more."""
        subscriptions = self._subscriptions
        place = place or subscriptions.anchor("now")[1]
        with translated(), subscriptions.connection.transaction():
            lock_subscription(subscriptions.connection, subscriptions.outbox.subscriptions.identifier, self._name)
            rows = subscriptions.get(self._name)
            reported = rows[0].until is not None
            stand = reported and all(_stands_at(each, at) for each in rows)
            if not stand and _resting_place(rows) != at:
                return None
            generation = max(subscriptions.now(), *(each.generation + 1 for each in rows))
            self._move_parked(rows)
            subscriptions.execute(_REMOVE, name=self._name)
            intents = [intent for each in rows if each.checkpoint is not None for intent in each.checkpoint.intents]
            for shard in range(self._shards):
                subscriptions.insert(
                    OutboxCheckpoint(
                        generation=generation,
                        number=1,
                        position=position_at(rows[0].source, at, place.as_json()),
                        low_watermark=rows[0].low_watermark,
                        origin=subscriptions.placed(rows[0].checkpoint),
                        intents=intents,  # any of them may be the first to send the next record of a key
                    ),
                    name=self._name,
                    shard=shard,
                    shards=self._shards,
                    source=rows[0].source,
                    topics=rows[0].topics,
                    keys=rows[0].keys,
                )
        return Resharded(before=rows[0].shards, after=self._shards, at=str(at))

    def _move_parked(self, rows: Sequence[SubscriptionShard]) -> None:
        """Move parked ids to the shards that their keys belong to now; forget ids that were sent after all."""
        outbox, connection = self._subscriptions.outbox, self._subscriptions.connection
        if not outbox.parked_ids.exists(connection):
            return
        names = {"table": in_statement(outbox.parked_ids.identifier)}
        for each in rows:
            position = (each.checkpoint.position if each.checkpoint is not None else None) or {}
            values = {"name": self._name, "shard": each.shard, "ids": list(position.get("retried", ()))}
            connection.execute(sql.SQL(_FORGET_SENT).format(**names), values)
        shard = shard_expression(sql.Identifier("kafka_key"), self._shards)
        connection.execute(sql.SQL(_MOVE_PARKED).format(shard=shard, **names), {"name": self._name})


def _has_stopped(shard: SubscriptionShard, at: Snapshot) -> bool:
    """Return True if the shard's checkpoint has this end, and no deferred records are left."""
    position = shard.checkpoint.position if shard.checkpoint is not None else None
    return position is not None and position.get("until") == str(at) and not position.get("deferred")


def _stands_at(shard: SubscriptionShard, at: Snapshot) -> bool:
    position = shard.checkpoint.position if shard.checkpoint is not None else None
    if position is None or not _has_stopped(shard, at) or "cur" in position:
        return False
    wanted = position_at(shard.source, at, ServerPlace(system="", timeline="", lsn="").as_json())
    return all(position.get(name) == value for name, value in wanted.items() if name != "server")


def _resting_place(shards: Sequence[SubscriptionShard]) -> Snapshot | None:
    """Return the snapshot at which all shards stand, if no leader lives and their checkpoints in Postgres are valid."""
    places = set()
    for each in shards:
        position = each.checkpoint.position if each.checkpoint is not None else None
        if each.is_led or each.checkpoint is None or each.checkpoint.kept_in != "postgres" or position is None:
            return None
        at = place_of(position)
        if at is None:
            return None
        places.add(at)
    return places.pop() if len(places) == 1 and len(shards) == shards[0].shards else None


def _waits_for(rows: Sequence[SubscriptionShard], at: Snapshot) -> str:
    if (missing := rows[0].shards - len(rows)) > 0:
        return f"{missing} of {rows[0].shards} shards, which were never led"
    late = next(each for each in rows if not _has_stopped(each, at))
    return f"shard {late.shard}" if late.is_led else f"shard {late.shard}, which has no leader"
