"""The result tables, in the schema `harvest_audit`: one audit's rows become visible together, or not at all.

An audit writes its findings into a staging table. One transaction then replaces the findings of an earlier audit of the
same id. Both audits use it: the audit in a single process stages rows by COPY, the audit by Spark by JDBC.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from harvest_lib.audit import result_queries as queries
from harvest_lib.audit.summary import AuditSummary, require_summary
from harvest_lib.grants.needed import creating
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.translation import translated

MOST_FINDINGS = 10_000
"""The largest number of findings of each kind in the result tables; the summary counts all findings."""


class AuditFinding(NamedTuple):
    """A row of the staging table. `kind` is `lost`, `duplicate`, `reordered` or `unknown`. `duplicate` is the kind of a
    duplicate: `adjacent`, `separated` or `cross_epoch`. Leaders are hexadecimal."""

    kind: str
    record: str
    duplicate: str | None = None
    outbox_id: int | None = None
    outbox_id_before: int | None = None
    leader: str | None = None
    leader_before: str | None = None
    kafka_topic: str | None = None
    kafka_partition: int | None = None
    kafka_offset: int | None = None
    since: datetime | None = None


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Create the schema and its missing tables, and delete staged rows of runs that died two days ago or earlier.
    Raises OutboxTableError if the summary table lacks columns."""
    summary = sql.Identifier("harvest_audit", "summary")
    with creating(connection, "the tables of audits", summary, makes_schema=True), connection.transaction():
        connection.execute(queries.LOCK_DDL)
        # Postgres asks for the right to create a schema even if the schema exists.
        if connection.execute(queries.ANY_MISSING, {"tables": [*queries.TABLES, "staging"]}).fetchone():
            connection.execute(queries.CREATE_TABLES)
        require_summary(column.name for column in connection.execute(queries.SUMMARY_COLUMNS).description or ())
        connection.execute(queries.CLEAR_OLD_STAGING)


def stage(connection: psycopg.Connection[Any], found: Iterable[AuditFinding], *, run: str) -> None:
    """Write the findings into the staging table, under the run."""
    with translated(), connection.transaction(), connection.cursor() as cursor, cursor.copy(queries.STAGE) as copy:
        for each in found:
            copy.write_row((run, *each))


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
