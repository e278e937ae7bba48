"""A batch from end to end, and what other runs of the same batch see.

A run holds the batch's session lock from its first look at the ledger to the commit of its promotion, both on one
connection: a run that died, or lost its connection, has lost the lock and can no longer promote. So whoever holds it
may remove all the staging rows it finds, waits for nobody who is dead, and of two runs at once one promotes and the
other finds the batch promoted. `promote` looks into the ledger once more, under the outbox's lock, for callers without
the batch's.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg
from pyspark.sql import DataFrame

from spark_jobs import queries
from spark_jobs.database import JdbcTarget, Tables, postgres_errors
from spark_jobs.promotion import clear_staging, ledger_entry, promote
from spark_jobs.source import Batch, flights_of
from spark_jobs.staging import stage

_LOCK_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What became of a batch. `at` is the Unix time of its promotion by Postgres's clock, None for an empty one."""

    batch: str
    rows: int
    status: Literal["promoted", "already-promoted", "empty"]
    staging_seconds: float = 0.0
    promote_seconds: float = 0.0
    at: float | None = None

    @property
    def rows_per_second(self) -> int:
        seconds = self.staging_seconds + self.promote_seconds
        return round(self.rows / seconds) if seconds else 0


def load_batch(
    flights: DataFrame,
    batch: Batch,
    *,
    connection: psycopg.Connection,
    target: JdbcTarget,
    tables: Tables,
    topic: str,
) -> BatchReport:
    """Stage and promote a batch unless it is promoted already.

    `connection` is this call's alone while it runs. Raises BatchConflict, PromotionRefused or another DatabaseError;
    then nothing of the batch is promoted, or all of it if the connection died during the commit.
    """
    run = str(uuid.uuid4())
    with _batch_lock(connection, batch, tables):
        clear_staging(connection, batch, tables=tables)
        if (entry := ledger_entry(connection, batch, tables=tables)) is not None:
            return BatchReport(
                batch=batch.id, rows=batch.rows, status="already-promoted", at=entry.promoted_at.timestamp()
            )
        if batch.rows == 0:
            return BatchReport(batch=batch.id, rows=0, status="empty")
        began = time.monotonic()
        stage(flights_of(flights, batch), batch=batch.id, run=run, target=target)
        staged = time.monotonic()
        entry, is_ours = promote(connection, batch, run=run, topic=topic, tables=tables)
        return BatchReport(
            batch=batch.id,
            rows=batch.rows,
            status="promoted" if is_ours else "already-promoted",
            staging_seconds=round(staged - began, 3),
            promote_seconds=round(time.monotonic() - staged, 3),
            at=entry.promoted_at.timestamp(),
        )


@contextmanager
def _batch_lock(connection: psycopg.Connection, batch: Batch, tables: Tables) -> Iterator[None]:
    who = {"batch": batch.id, "ledger": tables.ledger.as_string(connection)}
    # Asked again and again, because a statement that waits inside Postgres holds back vacuum everywhere.
    while True:
        with postgres_errors(f"locking batch {batch.id}"):
            row = connection.execute(queries.TRY_LOCK_BATCH, who).fetchone()
        if row is not None and row[0]:
            break
        time.sleep(_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        if not connection.broken:  # a session that is gone holds no lock
            with postgres_errors(f"unlocking batch {batch.id}"):
                connection.execute(queries.UNLOCK_BATCH, who)
