"""Changes the number of shards of a subscription during delivery, and preserves the order of each key.

    set the end of every shard to a snapshot S ─► each delivers all records in S ─► in one transaction: delete the old
                    ▲                             and reports that                  rows, add new rows that begin at S
                    └─ a shard was already after S ──┘

Promises
- The new shards begin where all old shards ended: no record is skipped, and no record is delivered twice.
- The new shards take into account everything that the leaders of old shards have delivered and saved: each leader has
  stopped before its row is deleted, and later saves are refused, even if the leader is still alive.
- If the change is not finished in time, the shards continue as before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psycopg import sql

from harvest_lib.checkpoints.subscription_rows import lock_subscription
from harvest_lib.errors import CheckpointError
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.server_identity import ServerPlace
from harvest_lib.source.sharding import shard_expression
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.subscriptions.starting_points import place_of, position_at

_POLL_SECONDS = 0.1

_STOP_AT = "UPDATE {table} SET until = %(until)s WHERE subscription = %(name)s"
# Deletes parked ids whose records were sent. The statement runs after the rows of the subscription are locked, so no
# save is running any more.
_FORGET_SENT = """
DELETE FROM {table} WHERE subscription = %(name)s AND shard = %(shard)s AND id = ANY (%(ids)s::bigint[])
"""
_MOVE_PARKED = "UPDATE {table} SET shard = {shard} WHERE subscription = %(name)s"
_REMOVE = "DELETE FROM {table} WHERE subscription = %(name)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """The result of a resharding: the number of shards before and after it. `at` is the snapshot at which the new
    shards begin."""

    before: int
    after: int
    at: str


class Resharding:
    """A change of the number of shards. `tell` is called with a text about shards that have not stopped yet."""

    def __init__(
        self, subscriptions: Subscriptions, name: str, shards: int, *, tell: Callable[[str], None] = lambda _text: None
    ) -> None:
        self._subscriptions = subscriptions
        self._name = name
        self._shards = shards
        self._tell = tell

    def run(self, timeout_seconds: float) -> Resharded:
        """Change the number of shards. Raises CheckpointError if the old shards do not stop at the same snapshot within
        the timeout."""
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
        """Wait until every shard has stopped, and return the snapshot at which all shards have stopped. This is `at`,
        or, if the last leaders ended without reading up to `at`, the snapshot that they had reached. Return None if a
        shard was already after `at`."""
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
        """Replace the old rows by new rows that begin at `at`. Return None if an old row is not at `at` any more."""
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
                        intents=intents,  # in all rows: any new shard may be the first to send the next record of a key
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
        """Delete parked ids whose records were sent in a retry, and assign all other parked ids to the new shards of
        their keys."""
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
    """Return True if the shard's checkpoint reports that the end `at` is reached, and has no deferred records."""
    position = shard.checkpoint.position if shard.checkpoint is not None else None
    return position is not None and position.get("until") == str(at) and not position.get("deferred")


def _stands_at(shard: SubscriptionShard, at: Snapshot) -> bool:
    position = shard.checkpoint.position if shard.checkpoint is not None else None
    if position is None or not _has_stopped(shard, at) or "cur" in position:
        return False
    wanted = position_at(shard.source, at, ServerPlace(system="", timeline="", lsn="").as_json())
    return all(position.get(name) == value for name, value in wanted.items() if name != "server")


def _resting_place(shards: Sequence[SubscriptionShard]) -> Snapshot | None:
    """Return the snapshot that all shards have as their position. Return None if there is no such snapshot, if any
    shard has a leader, or if the checkpoint of any shard is not in Postgres."""
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
