"""Continues subscriptions after their outbox moved to another server: by dump and restore, pg_upgrade or replication.

    which rows came along ─► which rows each subscription has delivered ─► new transaction ids for the rows, and new
                             (by the old ids, and its last checkpoint)     positions, all in one transaction

Promises
- Nothing is lost: rows after the last checkpoint are still delivered, and so are all rows written on this server.
- No row before the last checkpoint is delivered again. If the last checkpoint is in Kafka, it is read from Kafka.
- Moved rows are delivered before rows written on this server. The records of a key are delivered in order of id.
- Records that are deferred, parked or not yet acknowledged remain so.
- A move that is killed changes nothing. After a complete move, a repeated move changes nothing more. If a necessary
  fact cannot be determined, an error names the option with which the operator supplies the fact.

After pg_upgrade, transaction ids continue, so positions do not change, and no row is changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from harvest_lib.checkpoints.subscription_rows import lock_subscription
from harvest_lib.checkpoints.topic import read_checkpoints
from harvest_lib.config import HarvestConfig
from harvest_lib.config.model import default_checkpoint_topic
from harvest_lib.errors import CheckpointError, OutboxTableError, TopicMissing
from harvest_lib.outbox.relocation import MovedRows, Moves
from harvest_lib.outbox.relocation.moved_rows import FIRST_RANK, Origin
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import server_identity
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.sharding import shard_expression
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.subscriptions.starting_points import position_at, system_of

UNKNOWN = "unknown"
"""Name of the old server if no checkpoint contains its system identifier."""

MOST_DEFERRED = 20_000
"""Maximum number of deferred ids in a position."""

_PLACE = """
UPDATE {table} SET generation = %(generation)s, low_watermark = %(low_watermark)s,
  retention_hold = %(retention_hold)s, until = NULL, checkpoint = %(checkpoint)s, updated_at = now()
WHERE subscription = %(name)s AND shard = %(shard)s
"""

_FORGET_CLOSED = "DELETE FROM {segments} WHERE NOT leaving"

Fetch = Callable[[SubscriptionShard], Mapping[str, Any] | None]
"""Function that returns the last checkpoint of a shard in Kafka, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedOutbox:
    """The result of a move. `waiting` maps each subscription to its number of moved rows that are not yet delivered."""

    from_system: str
    to_system: str
    origin: Origin
    waiting: Mapping[str, int]


class Moving:
    """The move of all subscriptions of an outbox to this server. `fetch` reads checkpoints from Kafka."""

    def __init__(self, subscriptions: Subscriptions, fetch: Fetch, *, from_mirror: bool = False) -> None:
        """`from_mirror`: continue from the mirrors in Postgres. Records that were delivered after the mirrors were
        written are delivered again."""
        self._subscriptions = subscriptions
        self._connection = subscriptions.connection
        self._outbox = subscriptions.outbox
        self._fetch = fetch
        self._from_mirror = from_mirror

    def run(self, *, last_id: int | None = None) -> MovedOutbox | None:
        """Move the subscriptions. Return None if all subscriptions already belong to this server. `last_id` is the last
        id of the old server.

        Raises CheckpointError if a subscription has a leader, or if its last checkpoint is unavailable. Raises
        OutboxTableError if it cannot be determined which rows were moved.
        """
        subscriptions, connection = self._subscriptions, self._connection
        server_identity.require_primary(connection)
        place = server_identity.place(connection)
        place = replace(place, lsn=server_identity.barrier(connection))
        rows = MovedRows(self._outbox)
        with translated(), connection.transaction():
            names = sorted({each.name for each in subscriptions.shards()})
            for name in names:
                lock_subscription(connection, self._outbox.subscriptions.identifier, name)
            shards = subscriptions.readable()
            systems = {system for each in shards if (system := system_of(each.checkpoint)) is not None}
            is_native = self._outbox.kind(connection) == "native" and any(not each.marks for each in shards)
            if systems <= {place.system}:
                if systems or not (is_native and Moves(self._outbox).has_foreign_rows(connection)):
                    return None
                systems = {UNKNOWN}  # no subscription has a position yet
            self._check(shards, systems - {place.system}, place.system)
            if is_native:
                rows.check_quiet(connection)
            lasts = [self._last(each) for each in shards]
            origin = rows.origin(connection, last_id) if is_native else Origin()
            generation = max(subscriptions.now(), *(each.generation + 1 for each in shards))
            if origin.is_upgraded or not is_native:
                positions, waiting = self._kept(lasts), dict[str, int]()
            else:
                positions, waiting = self._ranked(rows, origin, shards, lasts)
            for each, last, position in zip(shards, lasts, positions, strict=True):
                if last is not None:
                    self._place(each, last, {**position, "server": place.as_json()}, generation)
            if is_native:
                names_of = {"segments": in_statement(self._outbox.segments.identifier)}
                connection.execute(sql.SQL(_FORGET_CLOSED).format(**names_of))
            (from_system,) = systems - {place.system}
            Moves(self._outbox).add(
                connection,
                from_system=from_system,
                to_system=place.system,
                last_id=origin.last_id,
                keeps_transactions=origin.is_upgraded,
            )
        return MovedOutbox(from_system=from_system, to_system=place.system, origin=origin, waiting=waiting)

    def _check(self, shards: Sequence[SubscriptionShard], others: set[str], ours: str) -> None:
        if led := [each for each in shards if each.is_led]:
            raise CheckpointError(
                f"the subscription {led[0].name!r} is being harvested",
                evidence=f"shard {led[0].shard} is led by {led[0].leader_id}",
                next_step="stop its harvesters first",
            )
        if len(others) > 1 or any(system_of(each.checkpoint) == ours for each in shards):
            raise CheckpointError(
                "the subscriptions are of several servers: which numbers the rows have cannot be known",
                evidence=f"their checkpoints came from {', '.join(sorted({*others, ours}))}; this server is {ours}",
                next_step="`harvest subscriptions remove` subscriptions begun here, move the others, and add them "
                "again",
            )

    # -- delivered records

    def _last(self, shard: SubscriptionShard) -> OutboxCheckpoint | None:
        """Return a shard's last checkpoint, or None if the shard has no position. If Postgres has only a mirror of the
        checkpoint, read the checkpoint from Kafka."""
        mirror = shard.checkpoint
        if mirror is None or mirror.position is None:
            return None
        if mirror.kept_in != "kafka" or self._from_mirror:
            return mirror
        record = self._fetch(shard)
        theirs = OutboxCheckpoint.of_json(record) if record is not None else None
        is_ours = record is not None and mirror.origin.get("identity") == record.get("identity", "")
        if theirs is None or not is_ours or (theirs.generation, theirs.number) < (mirror.generation, mirror.number):
            found = f"it has number {theirs.number}, generation {theirs.generation}" if theirs else "it has none"
            raise CheckpointError(
                f"the last checkpoint of the subscription {shard.name!r}, shard {shard.shard}, is not in Kafka",
                evidence=f"{found}{'' if is_ours or theirs is None else ', of another outbox'}; the mirror's number is "
                f"{mirror.number}, generation {mirror.generation}",
                next_step="correct `baseKafkaConfig` and `leaderGroupID`; if its topic is gone, add --from-mirror: "
                "records that were delivered after the mirror was written come again",
            )
        if theirs.generation > mirror.generation:
            raise CheckpointError(
                f"the subscription {shard.name!r} was rewound after the copy was made",
                evidence=f"Kafka has generation {theirs.generation}, the mirror is of {mirror.generation}",
                next_step="add --from-mirror to go on from the copy, or copy the database again",
            )
        return replace(theirs, origin=mirror.origin)

    def _kept(self, lasts: Sequence[OutboxCheckpoint | None]) -> list[Mapping[str, Any]]:
        """Return the positions of the checkpoints unchanged."""
        return [(each.position or {}) if each is not None else {} for each in lasts]

    def _ranked(
        self,
        rows: MovedRows,
        origin: Origin,
        shards: Sequence[SubscriptionShard],
        lasts: Sequence[OutboxCheckpoint | None],
    ) -> tuple[list[Mapping[str, Any]], dict[str, int]]:
        """Give the moved rows new transaction ids: lower ids for rows that more subscriptions have delivered. Return
        two values: the new position of each shard, and the number of undelivered rows of each subscription."""
        names = sorted({each.name for each in shards})
        conditions = [
            _any_of([_delivered(each, last) for each, last in zip(shards, lasts, strict=True) if each.name == name])
            for name in names
        ]
        last_id = origin.last_id if origin.last_id is not None else -(2**63)
        counts = rows.rank(self._connection, last_id, conditions)
        order = sorted(counts, key=lambda states: (-states.count("1"), -counts[states], states))
        rows.stamp(self._connection, {states: FIRST_RANK + number for number, states in enumerate(order)})
        positions: list[Mapping[str, Any]] = []
        waiting: dict[str, int] = {}
        for each, last in zip(shards, lasts, strict=True):
            place = names.index(each.name)
            passed = max((number + 1 for number, states in enumerate(order) if states[place] == "1"), default=0)
            waiting[each.name] = sum(counts[states] for states in order if states[place] == "0")
            skipped = [states for states in order[:passed] if states[place] == "0"]
            if sum(counts[states] for states in skipped) > MOST_DEFERRED:
                raise CheckpointError(
                    "the subscriptions stand too far apart to be moved together",
                    evidence=f"{each.name!r} has not delivered {sum(counts[states] for states in skipped)} of the "
                    f"records that others have, and they lack some of its own; {MOST_DEFERRED} can be deferred",
                    next_step="on the old server let them come to the end of the outbox, and copy again; or remove a "
                    "subscription and begin it again here",
                )
            at = FIRST_RANK + passed
            position: dict[str, Any] = {**position_at(each.source, Snapshot(at, at), _NOWHERE)}
            old = (last.position if last is not None else None) or {}
            deferred = rows.ids(self._connection, skipped) if skipped else []
            if each.shards > 1 and deferred:
                deferred = self._of_shard(each, deferred)
            kept = {"retried": old["retried"]} if old.get("retried") else {}
            positions.append({**position, **({"deferred": deferred} if deferred else {}), **kept})
        return positions, waiting

    def _of_shard(self, shard: SubscriptionShard, ids: Sequence[int]) -> list[int]:
        statement = sql.SQL("SELECT id FROM {} WHERE id = ANY (%s) AND {} = {} ORDER BY id").format(
            in_statement(self._outbox.identifier),
            shard_expression(sql.Identifier("kafka_key"), shard.shards),
            sql.Literal(shard.shard),
        )
        return [each for (each,) in self._connection.execute(statement, (list(ids),)).fetchall()]

    def _place(
        self, shard: SubscriptionShard, last: OutboxCheckpoint, position: Mapping[str, Any], generation: int
    ) -> None:
        checkpoint = replace(
            last,
            generation=generation,
            number=1,
            position=position,
            kept_in="postgres",
            origin=self._subscriptions.placed(last),
        )
        self._subscriptions.place(
            _PLACE,
            checkpoint,
            name=shard.name,
            shard=shard.shard,
            low_watermark=_low_watermark(shard, position),
            retention_hold=min(position.get("deferred", ()), default=None),
        )


_NOWHERE = server_identity.ServerPlace(system="", timeline="", lsn="").as_json()


def kafka_checkpoints(config: HarvestConfig) -> Fetch:
    """Return a function that reads a shard's last checkpoint in Kafka, from the topic to which it was written."""
    settings = config.kafka_settings(for_producer=False)

    def fetch(shard: SubscriptionShard) -> Mapping[str, Any] | None:
        known = shard.checkpoint.origin.get("kafka", {}) if shard.checkpoint is not None else {}
        own = config.checkpoint_topic if shard.name == config.subscription else ""
        topic = known.get("topic") or own or default_checkpoint_topic(config.leader_group_id, shard.name)
        try:
            found = read_checkpoints(settings, topic, shard.shard, f"{shard.name}/{shard.shard}")
        except TopicMissing:
            return None
        if found and found[0].trouble:
            raise CheckpointError(
                f"the record in Kafka for {shard.name!r}, shard {shard.shard}, is no checkpoint",
                evidence=f"topic {topic}, partition {shard.shard}, offset {found[0].offset}: {found[0].trouble}",
                next_step="add --from-mirror: records that were delivered after the mirror was written come again",
            )
        return found[0].record if found else None

    return fetch


def _low_watermark(shard: SubscriptionShard, position: Mapping[str, Any]) -> str:
    if "prev" in position:
        return str(position["prev"])
    if "transaction_id" in position:
        first = max(1, int(position["transaction_id"]))
        return f"{first}:{first}:"
    return shard.low_watermark


def _any_of(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(" OR ").join(conditions)) if conditions else sql.SQL("false")


def _delivered(shard: SubscriptionShard, last: OutboxCheckpoint | None) -> sql.Composable:
    """Return the SQL condition that is true for the delivered rows of a shard. It applies only as long as the rows have
    the old server's transaction ids."""
    if last is None or last.position is None:
        return sql.SQL("false")
    position = last.position
    match shard.source:
        case "snapshot":
            passed = sql.SQL("pg_visible_in_snapshot(transaction_id, {})").format(_snapshot(position["prev"]))
            if "cur" in position:
                passed = sql.SQL("({} OR (pg_visible_in_snapshot(transaction_id, {}) AND id <= {}))").format(
                    passed, _snapshot(position["cur"]), sql.Literal(position["after"])
                )
        case "transaction_id":
            passed = sql.SQL("(transaction_id, id) <= ({}::text::xid8, {}::bigint)").format(
                sql.Literal(str(position["transaction_id"])), sql.Literal(int(position["id"]))
            )
        case other:
            raise OutboxTableError(
                f"the subscription {shard.name!r} marks and purges: it cannot be one of several on a native table",
                evidence=f"its source is {other}",
                next_step="remove it, or the others",
            )
    parts = [passed]
    if deferred := position.get("deferred"):
        parts.append(sql.SQL("id <> ALL ({}::bigint[])").format(sql.Literal(list(deferred))))
    if shard.shards > 1:
        key = shard_expression(sql.Identifier("kafka_key"), shard.shards)
        parts.append(sql.SQL("{} = {}").format(key, sql.Literal(shard.shard)))
    return sql.SQL("({})").format(sql.SQL(" AND ").join(parts))


def _snapshot(text: str) -> sql.Composable:
    return sql.SQL("{}::pg_snapshot").format(sql.Literal(str(text)))
