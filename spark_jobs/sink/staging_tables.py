"""The staging tables of a write: emptied, swept, and freed of writers that are still at them."""

import hashlib

import psycopg
from psycopg import sql

from spark_jobs.sink import queries
from spark_jobs.sink.database import Tables, place_of, postgres_errors


def writer_name(batch: str, *, staging_oid: int) -> str:
    """Name the sessions of the tasks that stage a batch, so that they are found again."""
    return f"outbox-sink {staging_oid} {hashlib.sha256(batch.encode()).hexdigest()[:16]}"


def end_writers(connection: psycopg.Connection, batch: str, *, tables: Tables) -> None:
    """End the sessions of tasks that still stage the batch: its tasks are done, or their driver is dead."""
    place = place_of(connection, tables.staging)
    if place is not None:
        with postgres_errors("ending the tasks that lost the race"):
            connection.execute(queries.END_WRITERS, {"writer": writer_name(batch, staging_oid=place[0])})


def clear_staging(connection: psycopg.Connection, batch: str, *, tables: Tables) -> int:
    """Delete what was staged of the batch; return how many rows. The caller holds the batch's lock, or promotes it."""
    with postgres_errors("clearing the staging table"):
        return connection.execute(tables.fill(sql.SQL(queries.CLEAR_STAGING)), {"batch": batch}).rowcount


def _empty_staging(connection: psycopg.Connection, batch: str, *, tables: Tables) -> bool:
    """Empty the staging table as a whole, if nothing else is staged; False if something is, or may be in a moment.

    It leaves no dead rows behind, and takes no time. The lock is asked for without waiting, and held until the commit,
    which is all that is left to do.
    """
    try:
        with connection.transaction():  # a savepoint
            connection.execute(tables.fill(sql.SQL(queries.LOCK_STAGING)))
            if connection.execute(tables.fill(sql.SQL(queries.OTHERS_STAGED)), {"batch": batch}).fetchone() is not None:
                raise psycopg.Rollback
            connection.execute(tables.fill(sql.SQL(queries.EMPTY_STAGING)))
            return True
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False
    return False


def sweep_staging(connection: psycopg.Connection, *, tables: Tables) -> int:
    """Delete what dead runs have left of any batch: one whose lock is free is being staged by nobody."""
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
                swept += clear_staging(connection, batch, tables=tables)
            finally:
                connection.execute(queries.UNLOCK_BATCH, who)
    return swept
