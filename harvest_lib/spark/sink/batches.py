"""A batch from its first read of the ledger to its commit, and the lock against other runs of the same batch.

A run takes the batch's session lock before it reads the ledger, and promotes on the same connection. A run that died or
lost its connection has lost the lock too, and can no longer promote. So the holder of the lock may delete all staging
rows of the batch, and never waits for a dead run. If two runs are concurrent, the first promotes the batch, and the
second finds it promoted. The data source calls `promote` without the batch's lock; therefore `promote` reads the ledger
once more, under the outbox's lock.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from pyspark.sql import DataFrame

from harvest_lib.errors import DatabaseError
from harvest_lib.spark.sink import queries, through_driver
from harvest_lib.spark.sink.content import Content, content_of, nul_counts, nul_evidence
from harvest_lib.spark.sink.database import JdbcTarget, Tables, postgres_errors, takes_options
from harvest_lib.spark.sink.plan import WritePlan
from harvest_lib.spark.sink.promotion import check_same, ledger_entry, promote, refused, rows_refused
from harvest_lib.spark.sink.report import BatchReport, log_report
from harvest_lib.spark.sink.staging import computing, stage
from harvest_lib.spark.sink.staging_tables import Staged, sweep_staging

_LOCK_POLL_SECONDS = 0.1
_NUL_SENTENCE = 'encoding "UTF8": 0x00'


def load_batch(
    frame: DataFrame,
    batch: str,
    *,
    connection: psycopg.Connection,
    target: JdbcTarget,
    plan: WritePlan,
    content: Content | None = None,
) -> BatchReport:
    """Stage and promote a batch unless it is promoted already.

    Nothing else may use `connection` during the call. If the caller has computed the frame's content already, it passes
    `content`, and the staged rows are compared with it. With or without `content` this call computes the frame once.
    Raises BatchConflict, RecordError, PromotionRefused or another DatabaseError. On an error nothing of the batch is
    promoted, with one exception: if the connection dies during the commit, the whole batch may be promoted.
    """
    run, tables = str(uuid.uuid4()), plan.tables
    with _batch_lock(connection, batch, tables):
        sweep_staging(connection, tables=tables)
        if (before := _promoted_before(frame, batch, connection, tables, content)) is not None:
            return before
        if content is not None and content.rows == 0:
            return log_report(BatchReport.of(batch, None))
        began = time.monotonic()
        with _nul_named(frame, batch):
            stage(frame, batch=batch, run=run, target=target, by_options=takes_options(connection))
        seconds = time.monotonic() - began
        promoted = promote(connection, batch, content, staged=Staged(batch=batch, run=run, seconds=seconds), plan=plan)
        if promoted is None and (computed := content or _content_of(frame, batch)).rows:
            raise refused(batch, f"Spark computed {computed}; nothing is staged")
        promote_seconds = time.monotonic() - began - seconds
        return log_report(BatchReport.of(batch, promoted, staging_seconds=seconds, promote_seconds=promote_seconds))


def copy_batch(frame: DataFrame, batch: str, *, connection: psycopg.Connection, plan: WritePlan) -> BatchReport:
    """Write a batch through the driver unless it is promoted already. Raises the errors of `load_batch`, and
    SourceError."""
    with _batch_lock(connection, batch, plan.tables):
        if (before := _promoted_before(frame, batch, connection, plan.tables, None)) is not None:
            return before
        began = time.monotonic()
        with _nul_named(frame, batch):
            written = through_driver.write(connection, batch, frame, run=str(uuid.uuid4()), plan=plan)
        return log_report(BatchReport.of(batch, written, promote_seconds=time.monotonic() - began))


def _promoted_before(
    frame: DataFrame, batch: str, connection: psycopg.Connection, tables: Tables, content: Content | None
) -> BatchReport | None:
    entry = ledger_entry(connection, batch, tables=tables)
    if entry is None:
        return None
    check_same(entry, batch, content or _content_of(frame, batch))
    return log_report(BatchReport.of(batch, (entry, False)))


@contextmanager
def _nul_named(frame: DataFrame, batch: str) -> Iterator[None]:
    """Raise RecordError with the columns that have a NUL character, since Postgres's error names no column."""
    try:
        yield
    except DatabaseError as error:
        if _NUL_SENTENCE not in (error.evidence or "") or not (evidence := nul_evidence(nul_counts(frame))):
            raise
        raise rows_refused(batch, evidence) from error


def _content_of(frame: DataFrame, batch: str) -> Content:
    with computing(batch):
        return content_of(frame)


@contextmanager
def _batch_lock(connection: psycopg.Connection, batch: str, tables: Tables) -> Iterator[None]:
    who = {"batch": batch, "ledger": tables.ledger.as_string(None)}
    # Polls with a try-lock, because a statement that waits inside Postgres holds back vacuum of all tables.
    while True:
        with postgres_errors(f"locking batch {batch}"):
            row = connection.execute(queries.TRY_LOCK_BATCH, who).fetchone()
        if row is not None and row[0]:
            break
        time.sleep(_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        if not connection.broken:  # a session that is gone holds no lock
            with postgres_errors(f"unlocking batch {batch}"):
                connection.execute(queries.UNLOCK_BATCH, who)
