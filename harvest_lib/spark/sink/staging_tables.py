"""Cleaning of staging tables: delete a batch's rows, delete rows of dead runs, end sessions that still write."""

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
"""Age at which staged rows of the data source are deleted if no later run has promoted or replaced them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The rows that a run has staged. `batch` is the batch's id, or the data source's label for a batch or a stream.

    `named` maps a partition to the attempt in its task's message and the number of the attempt's rows; `run` is then
    a result of `new_run`. If `named` is None there are no messages, and the caller holds the batch's lock. `seconds` is
    how long the staging took.
    """

    batch: str
    run: str
    named: Mapping[int, tuple[str, int]] | None = None
    seconds: float = 0.0

    def dead(self) -> tuple[sql.SQL, dict[str, object]]:
        """Return the SQL condition of rows that are not needed after this batch's promotion, and its bound values."""
        if self.named is None:
            return sql.SQL(queries.DEAD_OF_BATCH), {"batch": self.batch}
        oldest = UUID(int=max(UUID(self.run).int - (_KEPT_MILLISECONDS << 80), 0))
        return sql.SQL(queries.DEAD_OF_RUN), {"batch": self.batch, "run": self.run, "oldest": oldest}


def new_run(connection: psycopg.Connection) -> str:
    """Return the id of a new run: a UUID of version 7 by Postgres's clock, so that ids sort by time."""
    now, version_and_variant = _now_milliseconds(connection), 7 << 76 | 2 << 62
    return str(UUID(int=now << 80 | version_and_variant | secrets.randbits(12) << 64 | secrets.randbits(62)))


def seconds_since(connection: psycopg.Connection, run: str) -> float:
    """Return how long ago `new_run` returned the id, by Postgres's clock."""
    return (_now_milliseconds(connection) - (UUID(run).int >> 80)) / 1_000


def _now_milliseconds(connection: psycopg.Connection) -> int:
    with postgres_errors("asking for the time"):
        (row,) = connection.execute(queries.NOW_MILLISECONDS)
    return int(row[0])


def writer_name(batch: str, *, staging_oid: int) -> str:
    """Return the `application_name` of sessions that stage a batch. `end_writers` finds the sessions by it."""
    return f"outbox-sink {staging_oid} {hashlib.sha256(batch.encode()).hexdigest()[:16]}"


def end_writers(connection: psycopg.Connection, batch: str, *, tables: Tables) -> None:
    """End sessions that still stage the batch. The caller must know that the batch's tasks are done, or that the driver
    of these tasks is dead."""
    place = place_of(connection, tables.staging)
    if place is not None:
        with postgres_errors("ending the tasks that lost the race"):
            connection.execute(queries.END_WRITERS, {"writer": writer_name(batch, staging_oid=place[0])})


def clear_staging(connection: psycopg.Connection, staged: Staged, *, tables: Tables) -> int:
    """Delete the rows that `staged.dead` selects; return their number. The caller must hold the batch's lock, or
    promote or abort the batch."""
    dead, values = staged.dead()
    with postgres_errors("clearing the staging table"):
        return connection.execute(tables.fill(sql.SQL(queries.CLEAR_STAGING), dead=dead), values).rowcount


def _empty_staging(connection: psycopg.Connection, staged: Staged, *, tables: Tables) -> bool:
    """Truncate the staging table if it has only rows that `staged.dead` selects, and no session uses it. Return True.

    If the table has other rows or is in use, or if the role may not truncate, return False and change nothing. TRUNCATE
    leaves no dead rows, and takes no time. This call does not wait for the lock. The lock is held until the commit,
    which follows soon.
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
    """Delete the staged rows of dead runs; return their number. A run is dead if the lock of its batch is free."""
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
