"""From staging to the business table and the outbox, in one transaction.

The steps, which `promote` repeats:

1. lock the outbox against other promotions until commit, so that outbox ids of one key rise in commit order
2. read the ledger: a batch that is there already is left alone, or refused if it stands for other data
3. choose one attempt per partition and compare count and hash with what Spark computed
4. insert business rows in the declared order and, from them, outbox rows; compare the count again
5. delete the batch's staging rows, of this run and of dead ones
6. enter the batch into the ledger; commit
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from spark_jobs import queries
from spark_jobs.database import Tables, postgres_errors
from spark_jobs.errors import BatchConflict, PromotionRefused
from spark_jobs.source import Batch

EVENT_TYPE = "flight-recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A promoted batch. `promoted_at` is Postgres's clock, just before the commit."""

    rows: int
    content_hash: str
    run: str
    promoted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt of one partition left in the staging table."""

    partition: int
    attempt: str
    rows: int
    hash_sum: Decimal


def ledger_entry(connection: psycopg.Connection, batch: Batch, *, tables: Tables) -> LedgerEntry | None:
    """Return the batch's ledger row, if it was promoted. Raises BatchConflict if it stands for other data."""
    with postgres_errors("reading the ledger"), connection.cursor(row_factory=class_row(LedgerEntry)) as cursor:
        statement = tables.fill(sql.SQL(queries.LEDGER_ENTRY))
        entry = cursor.execute(statement, {"batch": batch.id}).fetchone()
    if entry is not None and (entry.rows, entry.content_hash) != (batch.rows, batch.content_hash):
        raise BatchConflict(
            f"batch {batch.id} was promoted before, with other data",
            evidence=f"promoted at {entry.promoted_at.isoformat()} with {entry.rows} rows, hash {entry.content_hash}; "
            f"now it has {batch.rows} rows, hash {batch.content_hash}",
            next_step="load the file it was promoted from, or give the new data its own --table",
        )
    return entry


def choose_attempts(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Take the earliest attempt of each partition, in order of partition."""
    chosen: dict[int, Attempt] = {}
    for attempt in sorted(attempts, key=lambda a: (a.partition, int(a.attempt))):
        chosen.setdefault(attempt.partition, attempt)
    return list(chosen.values())


def promote(
    connection: psycopg.Connection, batch: Batch, *, run: str, topic: str, tables: Tables
) -> tuple[LedgerEntry, bool]:
    """Promote what `run` staged of the batch; return its ledger row and whether this call has written it.

    Raises BatchConflict, PromotionRefused (nothing is written) or another DatabaseError.
    """
    with postgres_errors(f"promoting batch {batch.id}"), connection.transaction():
        outbox = tables.outbox.as_string(connection)
        connection.execute(queries.LOCK_OUTBOX, {"outbox": outbox})
        connection.execute("SET LOCAL TimeZone = 'UTC'")  # so that every JSON value spells time_hour the same way
        clear_staging_of = {"batch": batch.id}
        if (entry := ledger_entry(connection, batch, tables=tables)) is not None:
            connection.execute(tables.fill(sql.SQL(queries.CLEAR_STAGING)), clear_staging_of)
            return entry, False

        with connection.cursor(row_factory=class_row(Attempt)) as cursor:
            statement = tables.fill(sql.SQL(queries.ATTEMPTS))
            chosen = choose_attempts(cursor.execute(statement, {"batch": batch.id, "run": run}))
        staged = sum(attempt.rows for attempt in chosen)
        staged_hash = str(sum((attempt.hash_sum for attempt in chosen), Decimal(0)))
        if (staged, staged_hash) != (batch.rows, batch.content_hash):
            raise _refused(batch, f"staging holds {staged} rows, hash {staged_hash}")

        promoted = connection.execute(
            tables.fill(sql.SQL(queries.PROMOTE)),
            {
                "batch": batch.id,
                "run": run,
                "topic": topic,
                "event_type": EVENT_TYPE,
                "partitions": [attempt.partition for attempt in chosen],
                "attempts": [attempt.attempt for attempt in chosen],
            },
        ).rowcount
        if promoted != batch.rows:
            raise _refused(batch, f"{promoted} rows reached the outbox")

        connection.execute(tables.fill(sql.SQL(queries.CLEAR_STAGING)), clear_staging_of)
        with connection.cursor(row_factory=class_row(LedgerEntry)) as cursor:
            values = {"batch": batch.id, "rows": batch.rows, "content_hash": batch.content_hash, "run": run}
            written = cursor.execute(tables.fill(sql.SQL(queries.ENTER_LEDGER)), values).fetchone()
    assert written is not None  # noqa: S101 - INSERT ... RETURNING of one row
    return written, True


def clear_staging(connection: psycopg.Connection, batch: Batch, *, tables: Tables) -> int:
    """Delete what dead runs of the batch staged; return how many rows. The caller holds the batch's lock."""
    with postgres_errors("clearing the staging table"):
        return connection.execute(tables.fill(sql.SQL(queries.CLEAR_STAGING)), {"batch": batch.id}).rowcount


def _refused(batch: Batch, evidence: str) -> PromotionRefused:
    return PromotionRefused(
        f"batch {batch.id} was not promoted: Postgres does not hold what Spark computed",
        evidence=f"Spark computed {batch.rows} rows, hash {batch.content_hash}; {evidence}",
        next_step="run the batch again; look for triggers on the tables if it repeats",
    )
