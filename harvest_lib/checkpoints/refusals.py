"""Evidence that the server lacks records that a checkpoint has passed, and its storage in the subscription's row.
After a restore, ids of transactions and records come again with other content, and continuing would skip them. A log,
or a transaction number, that ends before the checkpoint is evidence that wears off: the writers continue, and both grow
past it. So the first process that finds it writes it into the row. Each later process is refused by the same evidence,
until an operator places the subscription again, which replaces the row's checkpoint.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.errors import CheckpointError, DatabaseAccessDenied, ServerRegressed
from harvest_lib.postgres.database import in_statement, translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import server_identity
from harvest_lib.source.pg_snapshot import Snapshot

# No epoch is needed: each process stores it, even before it leads. A row that was written since the comparison belongs
# to another leader, which has newer knowledge.
REMEMBER = """
UPDATE {table} SET checkpoint = checkpoint || %(refused)s
WHERE subscription = %(subscription)s AND shard = %(shard)s AND generation = %(generation)s AND checkpoint IS NOT NULL
  AND coalesce((checkpoint ->> 'witness')::bigint, 0) = %(witness)s
"""

FIELD = "refused"
"""The field of the row's checkpoint that remembers a refusal."""


def check_server(
    connection: psycopg.Connection[Any], saved: Mapping[str, Any], checkpoint: OutboxCheckpoint, subscription: str
) -> None:
    """Raise ServerRegressed or CheckpointError if the server lacks records that `checkpoint` has passed, or was found
    to lack them before. `saved` is the row's content."""
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
    """Write the reason why `checkpoint` was refused into the row of a shard, if this role may, and its witness is
    unchanged."""
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
    """Return the refusal that a row stores, as a line; empty if there is none."""
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
    """Return a number of a transaction that the server had come to when a position was made."""
    if "transaction_id" in position:
        return int(position["transaction_id"])
    snapshot = position.get("cur") or position.get("prev")
    return Snapshot.parse(snapshot).xmax if snapshot else 0
