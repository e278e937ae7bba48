"""Refusals: evidence, stored in a subscription's row, that the server lacks records before the checkpoint.

After a restore, transaction ids and record ids are reused for other records, and a harvester that continued would skip
these records. The evidence can disappear: if the server's WAL or its transaction ids end before the checkpoint, writers
soon advance both past the checkpoint. So the first process that finds the evidence stores it in the row. The stored
evidence refuses each later process, until an operator rewinds the subscription and so replaces the row's checkpoint.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.errors import CheckpointError, DatabaseAccessDenied, ServerRegressed
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import server_identity
from harvest_lib.source.pg_snapshot import Snapshot

# The statement requires no epoch, since a process stores evidence even before it leads. If the row was written after
# the check (its witness differs), another leader has newer information, and nothing is stored.
REMEMBER = """
UPDATE {table} SET checkpoint = checkpoint || %(refused)s
WHERE subscription = %(subscription)s AND shard = %(shard)s AND generation = %(generation)s AND checkpoint IS NOT NULL
  AND coalesce((checkpoint ->> 'witness')::bigint, 0) = %(witness)s
"""

FIELD = "refused"
"""The field of the row's checkpoint that contains the stored refusal."""


def check_server(
    connection: psycopg.Connection[Any], saved: Mapping[str, Any], checkpoint: OutboxCheckpoint, subscription: str
) -> None:
    """Raise ServerRegressed or CheckpointError if the server lacks records before `checkpoint`, or if an earlier check
    has stored a refusal of `checkpoint`. `saved` is the checkpoint in the row, as JSON."""
    if (refusal := saved.get(FIELD)) and _names(refusal, checkpoint):
        raise ServerRegressed(
            refusal["cause"],
            evidence=f"{refusal['evidence']}; found at {refusal['at']}, and the subscription was not placed since",
            next_step=refusal["next_step"],
        )
    position = checkpoint.position or {}
    if not (before := position.get("server")):
        return
    server_identity.check(connection, before, subscription, source=position.get("source", ""))
    server_identity.check_transactions(connection, _transactions(position), subscription)


def remember(
    connection: psycopg.Connection[Any],
    table: sql.Identifier,
    row: Mapping[str, Any],
    checkpoint: OutboxCheckpoint,
    error: ServerRegressed | CheckpointError,
    *,
    witness: int,
) -> None:
    """Store in the row of a shard why `checkpoint` was refused. Nothing is stored if this role may not write, or if the
    row's witness is not `witness` any more."""
    refusal = {
        **_identity(checkpoint),
        "cause": error.cause,
        "evidence": error.evidence,
        "next_step": error.next_step,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    values = {**row, "generation": checkpoint.generation, "witness": witness, FIELD: Jsonb({FIELD: refusal})}
    with suppress(DatabaseAccessDenied), translated():
        connection.execute(sql.SQL(REMEMBER).format(table=in_statement(table)), values)


def refusal_of(saved: Mapping[str, Any]) -> str:
    """Return the refusal in the row's checkpoint `saved` as a line of text; empty if there is no refusal."""
    refusal = saved.get(FIELD)
    return f"{refusal['cause']}: {refusal['evidence']}; {refusal['next_step']}" if refusal else ""


def _identity(checkpoint: OutboxCheckpoint) -> Mapping[str, Any]:
    return {
        "generation": checkpoint.generation,
        "number": checkpoint.number,
        "leader_id": checkpoint.origin.get("leader_id"),
    }


def _names(refusal: Mapping[str, Any], checkpoint: OutboxCheckpoint) -> bool:
    return all(refusal.get(name) == value for name, value in _identity(checkpoint).items())


def _transactions(position: Mapping[str, Any]) -> int:
    """Return a transaction id that the server had reached when the position was made; 0 if the position has none."""
    if "transaction_id" in position:
        return int(position["transaction_id"])
    snapshot = position.get("cur") or position.get("prev")
    return Snapshot.parse(snapshot).xmax if snapshot else 0
