"""The result tables, in the schema `harvest_audit`: one audit's rows become visible together, or not at all.

Spark writes into a staging table; one transaction then replaces the findings of an earlier audit of the same id.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from harvest_lib.grants.needed import creating
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.translation import translated
from harvest_lib.spark.audit import queries
from harvest_lib.spark.audit_summary import AuditSummary, require_summary
from harvest_lib.spark.sink.database import JdbcTarget


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Create the schema and its missing tables, and delete staged rows of runs that died two days ago or earlier.
    Raises OutboxTableError if the summary table lacks columns."""
    summary = sql.Identifier("harvest_audit", "summary")
    with creating(connection, "the tables of audits", summary, makes_schema=True), connection.transaction():
        connection.execute(queries.LOCK_DDL)
        connection.execute(queries.CREATE_TABLES)
        require_summary(column.name for column in connection.execute(queries.SUMMARY_COLUMNS).description or ())
        connection.execute(queries.CLEAR_OLD_STAGING)


def stage(found: DataFrame, *, run: str, target: JdbcTarget) -> None:
    """Write the findings into the staging table, under the run. Raises Spark's errors."""
    rows = found.drop("is_settled").withColumn("run", F.lit(run))
    rows.write.jdbc(target.url, target.table, mode="append", properties=dict(target.properties))


def promote(
    connection: psycopg.Connection[Any], summary: AuditSummary, *, run: str, outbox: OutboxTable, topics: Sequence[str]
) -> None:
    """Replace all result rows of the audit's id in a single transaction. The new rows are the run's staged rows, the
    summary, and the names of outbox and topics."""
    about = {"outbox": str(outbox.placed(connection)), "topics": list(topics)}
    numbers = asdict(summary)
    values = {**numbers, **about, "run": run}
    summarize = sql.SQL(queries.SUMMARIZE).format(
        names=sql.SQL(", ").join(map(sql.Identifier, numbers)),
        values=sql.SQL(", ").join(map(sql.Placeholder, numbers)),
    )
    with translated(), connection.transaction():
        connection.execute(queries.LOCK_AUDIT, values)
        for table in queries.TABLES:
            connection.execute(sql.SQL(queries.FORGET).format(table=sql.Identifier(table)), values)
        for statement in queries.PROMOTE:
            connection.execute(statement, values)
        connection.execute(summarize, values)
        connection.execute(queries.SAY_WHAT, values)
        connection.execute(queries.CLEAR_STAGING, values)


def clear(connection: psycopg.Connection[Any], *, run: str) -> None:
    """Delete a run's staged rows. Errors of the database are ignored, because an earlier error may be the one to
    report."""
    with suppress(psycopg.Error):
        connection.execute(queries.CLEAR_STAGING, {"run": run})
