"""Starting points of a subscription: `beginning`, `now`, or a snapshot, which is valid only on its own server."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from harvest_lib.errors import CheckpointError, ConfigError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.relocation import Moves
from harvest_lib.postgres.translation import translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import server_identity, snapshot, transaction_id
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot

SOURCES = (snapshot.NAME, transaction_id.NAME)

Checkpoints = Callable[[], Iterable[OutboxCheckpoint | None]]
"""Function that returns the checkpoints of all subscriptions of the outbox."""

_READ_SNAPSHOT = "SELECT %(text)s::pg_snapshot::text, pg_current_snapshot()::text"


def anchor(
    connection: psycopg.Connection[Any], outbox: OutboxTable, text: str, checkpoints: Checkpoints
) -> tuple[Snapshot, server_identity.ServerPlace]:
    """Return two values: the snapshot that `text` means, and a WAL location. `text` is `beginning`, `now` or a
    snapshot. All records in the returned snapshot are on disk, before the WAL location.

    Raises CheckpointError for a snapshot that belongs, or may belong, to another server.
    """
    server_identity.require_primary(connection)
    place = server_identity.place(connection)
    text, _, system = text.partition("@")
    values = {"text": str(NOTHING) if text in {"beginning", "now"} else text}
    with translated():
        try:
            row = connection.execute(_READ_SNAPSHOT, values).fetchone()
        except psycopg.DataError:
            row = None
    if row is None:
        raise CheckpointError(
            "that is no snapshot of Postgres'",
            evidence=f"{text[:80]!r} does not read as xmin:xmax:in,progress",
            next_step="give `beginning`, `now`, or a low watermark that `harvest subscriptions list` has shown",
        )
    if text not in {"beginning", "now"}:
        _require_own(connection, outbox, system, place.system, checkpoints)
    given, now = (Snapshot.parse(each) for each in row)
    if text == "now":
        given = now
    elif given.xmax > now.xmax:
        raise CheckpointError(
            "the snapshot is ahead of the database",
            evidence=f"it includes transactions up to {given.xmax}, the server has reached {now.xmax}",
            next_step="give a snapshot of this server, `beginning` or `now`",
        )
    return given, replace(place, lsn=server_identity.barrier(connection))


def _require_own(
    connection: psycopg.Connection[Any], outbox: OutboxTable, system: str, ours: str, checkpoints: Checkpoints
) -> None:
    """Raise CheckpointError unless a snapshot belongs to this server, or to a server whose transaction ids continue on
    this server. `system` is the system identifier given with the snapshot, or empty."""
    moves = Moves(outbox).read(connection)
    known = {ours, *(each.from_system for each in moves if each.keeps_transactions)}
    if system in known:
        return
    others = {each.from_system for each in moves}.union(
        other for each in checkpoints() if (other := system_of(each)) not in {None, ours}
    )
    is_native = outbox.kind(connection) == "native"
    if system or others or (is_native and Moves(outbox).has_foreign_rows(connection)):
        named = ", ".join(sorted(others)) or "according to its rows"
        raise CheckpointError(
            "the snapshot is of another server" if system else "the snapshot cannot be shown to be of this server",
            evidence=f"this server is {ours}"
            + (f", the snapshot's {system}" if system else f"; the outbox came from another server, {named}"),
            next_step="give `beginning`, `now`, or a snapshot of this server with the server that it is of: "
            f"`xmin:xmax:in,progress@{ours}`, as `harvest subscriptions list` shows it; a subscription that "
            "was moved from another server goes on where it was after `harvest subscriptions move`",
        )


def refuse_other_servers(
    connection: psycopg.Connection[Any], name: str, checkpoints: Sequence[OutboxCheckpoint | None]
) -> None:
    """Raise CheckpointError if a checkpoint of the subscription came from another server."""
    ours = server_identity.place(connection).system
    for each in checkpoints:
        if (system := system_of(each)) not in {None, ours}:
            raise CheckpointError(
                f"the checkpoint of the subscription {name!r} in Postgres came from another server",
                evidence=f"its system identifier is {system}, this server's is {ours}",
                next_step="correct `dataSource`; if the outbox was moved, by dump and restore, pg_upgrade or "
                "replication: `harvest subscriptions move`",
            )


def position_at(source: str, at: Snapshot, server: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the position for a source that has delivered the records in the snapshot `at`. A position of
    `transaction_id` may be earlier, since it cannot express every snapshot. `server` is the WAL location."""
    make = transaction_id.position_at if source == transaction_id.NAME else snapshot.position_at
    return make(at, server)


def system_of(checkpoint: OutboxCheckpoint | None) -> str | None:
    """Return the system identifier of the server that assigned a checkpoint's transaction ids; None if the checkpoint
    does not contain it."""
    if checkpoint is None:
        return None
    if (place := (checkpoint.position or {}).get("server")) and place.get("system"):
        return str(place["system"])
    return str(checkpoint.origin["identity"]).split("/")[0] if "identity" in checkpoint.origin else None


def place_of(position: Mapping[str, Any]) -> Snapshot | None:
    """Return the snapshot that sees exactly the records before a position; None if there is no such snapshot, or if the
    position has deferred records."""
    if "cur" in position or position.get("deferred"):
        return None
    if "prev" in position:
        return Snapshot.parse(position["prev"])
    return transaction_id.snapshot_of(position)


def unknown_source(source: str) -> ConfigError:
    return ConfigError(
        f"{source[:80]!r} is no source that has positions", field="source", next_step=f"choose {' or '.join(SOURCES)}"
    )
