"""The staging tables of a write: emptied, swept, and freed of writers that are still at them."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.database import Tables, place_of, postgres_errors

_KEPT_MILLISECONDS = 7 * 24 * 60 * 60 * 1_000
"""Milliseconds that rows of a run of the data source are kept if they are neither promoted nor replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Rows that a run has staged under a batch's id, or under a stream's name while the batch has no id yet.

    `named` are the attempts that the tasks' messages name, and their rows, by partition; then the run is a
    `new_run`. None: no attempt is named, and the caller holds the batch's lock.
    """

    batch: str
    run: str
    named: Mapping[int, tuple[str, int]] | None = None

    def dead(self) -> tuple[sql.SQL, dict[str, object]]:
        """Return the condition of rows that are not needed once this batch is promoted, and its values."""
        if self.named is None:
            return sql.SQL(queries.DEAD_OF_BATCH), {"batch": self.batch}
        oldest = UUID(int=max(UUID(self.run).int - (_KEPT_MILLISECONDS << 80), 0))
        return sql.SQL(queries.DEAD_OF_RUN), {"batch": self.batch, "run": self.run, "oldest": oldest}


def new_run(connection: psycopg.Connection) -> str:
    """Return the id of a run: a UUID that rises with Postgres's clock (version 7), so that later runs sort last."""
    with postgres_errors("asking for the time"):
        (row,) = connection.execute(queries.NOW_MILLISECONDS)
    version_and_variant = 7 << 76 | 2 << 62
    return str(UUID(int=row[0] << 80 | version_and_variant | secrets.randbits(12) << 64 | secrets.randbits(62)))


def writer_name(batch: str, *, staging_oid: int) -> str:
    """Name the sessions of the tasks that stage a batch, so that they are found again."""
    return f"outbox-sink {staging_oid} {hashlib.sha256(batch.encode()).hexdigest()[:16]}"


def end_writers(connection: psycopg.Connection, batch: str, *, tables: Tables) -> None:
    """End the sessions of tasks that still stage the batch: its tasks are done, or their driver is dead."""
    place = place_of(connection, tables.staging)
    if place is not None:
        with postgres_errors("ending the tasks that lost the race"):
            connection.execute(queries.END_WRITERS, {"writer": writer_name(batch, staging_oid=place[0])})


def clear_staging(connection: psycopg.Connection, staged: Staged, *, tables: Tables) -> int:
    """Delete the staged rows of the batch; return their number. The caller holds the batch's lock, or promotes it."""
    dead, values = staged.dead()
    with postgres_errors("clearing the staging table"):
        return connection.execute(tables.fill(sql.SQL(queries.CLEAR_STAGING), dead=dead), values).rowcount


def _empty_staging(connection: psycopg.Connection, staged: Staged, *, tables: Tables) -> bool:
    """Empty the staging table as a whole, if nothing else is staged; False if something is, or may be in a moment.

    It leaves no dead rows behind, and takes no time. The lock is tried without waiting, and held until the commit,
    which is all that is left to do.
    """
    dead, values = staged.dead()
    try:
        with connection.transaction():  # a savepoint
            connection.execute(tables.fill(sql.SQL(queries.LOCK_STAGING)))
            others = connection.execute(tables.fill(sql.SQL(queries.OTHERS_STAGED), dead=dead), values)
            if others.fetchone() is not None:
                raise psycopg.Rollback
            connection.execute(tables.fill(sql.SQL(queries.EMPTY_STAGING)))
            return True
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False
    return False


def sweep_staging(connection: psycopg.Connection, *, tables: Tables) -> int:
    """Delete rows that dead runs have left of any batch: if a batch's lock is free, no run stages it."""
    swept = 0
    ledger = tables.ledger.as_string(None)
    with postgres_errors("sweeping the staging table"):
        for (batch,) in connection.execute(tables.fill(sql.SQL(queries.STAGED_BATCHES))).fetchall():
            who = {"batch": batch, "ledger": ledger}
            row = connection.execute(queries.TRY_LOCK_BATCH, who).fetchone()
            if row is None or not row[0]:
                continue
            try:
                end_writers(connection, batch, tables=tables)
                swept += clear_staging(connection, Staged(batch=batch, run=""), tables=tables)
            finally:
                connection.execute(queries.UNLOCK_BATCH, who)
    return swept
