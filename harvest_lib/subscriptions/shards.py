"""State of the shards of subscriptions, read from their rows in Postgres."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from harvest_lib.checkpoints.record import read_checkpoint, unreadable
from harvest_lib.checkpoints.refusals import refusal_of
from harvest_lib.errors import CheckpointError
from harvest_lib.leadership.pool import announced
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import snapshot
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.subscriptions.backlog import values_of
from harvest_lib.subscriptions.starting_points import SOURCES, position_at, system_of, unknown_source

_ROWS = """
SELECT subscription AS name, shard, shards, source, generation, epoch, leader_id, topics, keys,
       low_watermark::text AS low_watermark, retention_hold, until::text AS until, checkpoint, updated_at,
       extract(epoch FROM clock_timestamp() - updated_at)::float8 AS updated_seconds_ago
FROM {table} WHERE subscription = coalesce(%(name)s, subscription) ORDER BY subscription, shard
"""

_LEADERS = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'harvest leader %'"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionShard:
    """State of a shard of a subscription.

    `low_watermark` is a snapshot: every record visible in it was delivered, except records with ids at or above
    `retention_hold`. `until` is the snapshot at which the shard has to stop. `leader_id` is the id of the last leader;
    `is_led` is True if that leader is alive.
    """

    name: str
    shard: int
    shards: int
    source: str
    generation: int
    epoch: int
    leader_id: str | None
    is_led: bool
    topics: Sequence[str] | None
    keys: str | None
    low_watermark: str
    retention_hold: int | None
    until: str | None
    checkpoint: OutboxCheckpoint | None
    checkpoint_trouble: str = ""
    """The reason why the checkpoint in Postgres is unreadable; `checkpoint` is then None. Empty without a problem."""
    refusal: str = ""
    """Stored evidence that the server lacks harvested records, with the command to run; empty without evidence."""
    updated_at: datetime
    updated_seconds_ago: float

    @property
    def marks(self) -> bool:
        """True if the leaders of the shard mark and delete rows; False if they only read rows."""
        return self.source == "mark"


def read_shards(
    connection: psycopg.Connection[Any], table: sql.Identifier, name: str | None = None
) -> Sequence[SubscriptionShard]:
    """Return the state of each shard of the subscription `name`, or of all subscriptions in `table`."""
    with translated():
        leaders = {each for (each,) in connection.execute(_LEADERS)}
        rows = connection.execute(sql.SQL(_ROWS).format(table=in_statement(table)), {"name": name})
        rows.row_factory = dict_row
        return [_shard(row, leaders) for row in rows]


def trouble_notes(shards: Sequence[SubscriptionShard]) -> Sequence[str]:
    """Return the problems of the shards' checkpoints, each as a line of text with its remedy."""
    errors = [unreadable(each.name, each.shard, each.checkpoint_trouble) for each in shards if each.checkpoint_trouble]
    refusals = [f"the subscription {each.name!r} does not go on: {each.refusal}" for each in shards if each.refusal]
    return [*(f"{each.cause}: {each.evidence}; {each.next_step}" for each in errors), *refusals]


def mirrored(shard: SubscriptionShard, source: str, generation: int, place: Mapping[str, str]) -> OutboxCheckpoint:
    """Return the checkpoint in Postgres (the mirror), with the WAL location `place` of the current server. Earlier
    forks of the timeline do not matter: if the server was restored, the mirror was restored too. Raises CheckpointError
    if the mirror has no position or cannot be read, and ConfigError for a conversion from `mark`."""
    kept = shard.checkpoint
    if shard.checkpoint_trouble:
        raise unreadable(shard.name, shard.shard, shard.checkpoint_trouble)
    if kept is None or kept.position is None:
        raise CheckpointError(
            f"the subscription {shard.name!r} has no checkpoint in Postgres",
            evidence=f"shard {shard.shard} was never harvested",
            next_step=f"harvest subscriptions rewind {shard.name} --to beginning|now|SNAPSHOT",
        )
    position, low_watermark = kept.position, Snapshot.parse(shard.low_watermark)
    if "server" in position:
        position = {**position, "server": place}
    if source != shard.source:
        if shard.source not in SOURCES:
            raise unknown_source(shard.source)
        begun = position_at(source, low_watermark, position.get("server", {}))
        position = {**begun, "deferred": position.get("deferred", [])}
    return replace(
        kept,
        generation=generation,
        position=position,
        low_watermark=shard.low_watermark,
        retention_hold=shard.retention_hold,
        kept_in="postgres",
    )


def _readable(row: Mapping[str, Any]) -> tuple[OutboxCheckpoint | None, str]:
    """Return two values: the checkpoint of a row or None, and the reason if the checkpoint cannot be read (else an
    empty text). An unreadable checkpoint raises no error, so that the other rows can be read."""
    if not (saved := row["checkpoint"]):
        return None, ""
    try:
        checkpoint = read_checkpoint(saved, row["name"], row["shard"])
        if row["source"] in SOURCES and (position := checkpoint.position):
            values_of(row["source"], position)
            position["prev" if row["source"] == snapshot.NAME else "transaction_id"]
        system_of(checkpoint)
    except CheckpointError as error:
        return None, error.evidence
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return None, f"its position is none of source {row['source']}: {error!r}"[:200]
    return checkpoint, ""


def _shard(row: Mapping[str, Any], leaders: set[str]) -> SubscriptionShard:
    leader_id = row["leader_id"]
    checkpoint, trouble = _readable(row)
    made = {
        "leader_id": str(leader_id) if leader_id is not None else None,
        "is_led": leader_id is not None and announced(leader_id) in leaders,
        "checkpoint": checkpoint,
        "checkpoint_trouble": trouble,
        "refusal": refusal_of(row["checkpoint"]) if checkpoint is not None else "",
        "updated_seconds_ago": max(0.0, row["updated_seconds_ago"]),
    }
    return SubscriptionShard(**{**row, **made})
