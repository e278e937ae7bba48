"""The audit's result tables in Postgres, schema `harvest_audit`, which `harvest_lib.spark.audit` writes."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from dagster_harvest.settings import DETAIL_TABLES, OutboxSettings
from harvest_lib.audit.summary import AuditSummary, require_summary, together
from harvest_lib.errors import HarvestError
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import translated

SCHEMA = "harvest_audit"

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL AS found"
_COLUMNS = """
SELECT a.attname FROM pg_attribute AS a
WHERE a.attrelid = to_regclass('harvest_audit.summary') AND a.attnum > 0 AND NOT a.attisdropped
"""
_LAST = """
SELECT {columns} FROM harvest_audit.summary AS s WHERE starts_with(audit_id, %(prefix)s) AND {ours}
ORDER BY at DESC, audit_id DESC LIMIT {most}
"""
_OURS = """
(SELECT bool_and(outbox = %(outbox)s) AND array_agg(kafka_topic) @> %(topics)s::text[]
 FROM harvest_audit.audited AS a WHERE a.audit_id = s.audit_id)
"""
# Audits of a single topic, so that no number covers two topics.
_OURS_OF_TOPIC = """
(SELECT bool_and(outbox = %(outbox)s) AND array_agg(kafka_topic) = %(topics)s::text[]
 FROM harvest_audit.audited AS a WHERE a.audit_id = s.audit_id)
"""
_SAMPLED_ROWS = 20
_PLOTTED_AUDITS = 60
_SAMPLE = "SELECT * FROM {table} WHERE audit_id = %s ORDER BY length(record), record LIMIT {rows}"
_COUNT = "SELECT count(*) AS found FROM {table} WHERE audit_id = %s"


class AuditMissing(HarvestError):
    """No audit has left a result: run an audit."""


def last_summary(
    connection: psycopg.Connection[Any],
    settings: OutboxSettings,
    outbox: OutboxTable,
    *,
    audit_id: str | None = None,
    topics: Sequence[str] | None = None,
) -> AuditSummary:
    """Return the summary of the last audit of this outbox and all its topics. Audits whose ids lack the prefix
    `audit.id_prefix` are ignored. If `audit_id` is given, return the summary of that audit, which must cover `topics`.
    With `audit.by_topic`, but without `audit_id`, combine the last audit of each topic into a single summary.

    Raises AuditMissing if there is no such audit, or if a topic was not audited for `audit.fail_after_hours`;
    OutboxTableError if the table of summaries lacks columns; NothingChecked if the last audit of a single topic
    compared no records and the settings do not allow that.
    """
    if audit_id is not None or not settings.audit.by_topic:
        return _last(connection, settings, outbox, topics or settings.topics, audit_id)
    found = {topic: _last(connection, settings, outbox, [topic], None) for topic in settings.topics}
    for topic, summary in found.items():
        require_compared(summary, settings)
        if datetime.now(UTC) - summary.at > timedelta(hours=settings.audit.fail_after_hours):
            raise AuditMissing(
                f"the topic {topic!r} was not audited for {settings.audit.fail_after_hours:g} hours",
                evidence=f"its last audit is {summary.audit_id}, of {summary.at:%Y-%m-%d %H:%M}",
                next_step=f"materialize the partition {topic!r} of the audit's assets",
            )
    return together(list(found.values()))


def past_summaries(
    connection: psycopg.Connection[Any], settings: OutboxSettings, outbox: OutboxTable, topics: Sequence[str]
) -> list[AuditSummary]:
    """Return the summaries of the last 60 audits of this outbox and the topics, the oldest first. Raises AuditMissing
    or OutboxTableError."""
    return _last_rows(connection, settings, outbox, topics, None, most=_PLOTTED_AUDITS)[::-1]


def _last(
    connection: psycopg.Connection[Any],
    settings: OutboxSettings,
    outbox: OutboxTable,
    topics: Sequence[str],
    audit_id: str | None,
) -> AuditSummary:
    return _last_rows(connection, settings, outbox, topics, audit_id, most=1)[0]


def _last_rows(
    connection: psycopg.Connection[Any],
    settings: OutboxSettings,
    outbox: OutboxTable,
    topics: Sequence[str],
    audit_id: str | None,
    *,
    most: int,
) -> list[AuditSummary]:
    is_of_topic = settings.audit.by_topic and audit_id is None
    next_step = "materialize the audit's assets, or run `python -m harvest_lib.spark.audit`"
    prefix = audit_id or settings.audit.id_prefix or ""
    with translated(), connection.cursor(row_factory=dict_row) as cursor:
        found = {row["attname"] for row in cursor.execute(_COLUMNS)}
        if not found:
            raise AuditMissing(
                "nothing was audited yet", evidence="there is no harvest_audit.summary", next_step=next_step
            )
        require_summary(found)
        columns = sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(AuditSummary))
        ours = sql.SQL(_OURS_OF_TOPIC if is_of_topic else _OURS)
        named = str(outbox.placed(connection) if outbox.exists(connection) else outbox)
        values = {"prefix": prefix, "outbox": named, "topics": list(topics)}
        query = sql.SQL(_LAST).format(columns=columns, ours=ours, most=sql.Literal(most))
        rows = cursor.execute(query, values).fetchall()
    if not rows:
        begins = f" whose audit_id begins with {prefix!r}" if prefix else ""
        raise AuditMissing(
            "nothing was audited yet",
            evidence=f"harvest_audit.summary has no audit of {outbox} and all of {', '.join(topics)}{begins}",
            next_step=next_step,
        )
    return [AuditSummary(**row) for row in rows]


def require_compared(summary: AuditSummary, settings: OutboxSettings) -> AuditSummary:
    """Return the summary. Raises NothingChecked if the audit compared nothing and the settings do not allow that."""
    if summary.is_empty and not settings.audit.allow_empty:
        raise summary.nothing_checked("set `allow_empty: true` below `audit`")
    return summary


def details(connection: psycopg.Connection[Any], audit_id: str) -> dict[str, int]:
    """Return the number of an audit's rows in each table of DETAIL_TABLES, 0 for a table that does not exist."""
    counts = {}
    with translated(), connection.cursor(row_factory=dict_row) as cursor:
        for name in DETAIL_TABLES:
            row = cursor.execute(_EXISTS, (f"{SCHEMA}.{name}",)).fetchone()
            if row is None or not row["found"]:
                counts[name] = 0
                continue
            table = sql.Identifier(SCHEMA, name)
            row = cursor.execute(sql.SQL(_COUNT).format(table=table), (audit_id,)).fetchone()
            counts[name] = int(row["found"]) if row is not None else 0
    return counts


def sample(connection: psycopg.Connection[Any], audit_id: str, table: str) -> str:
    """Return an audit's first rows in a detail table as a Markdown table; an empty text if there are no rows."""
    name, first = sql.Identifier(SCHEMA, table), sql.Literal(_SAMPLED_ROWS)
    with translated(), connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(sql.SQL(_SAMPLE).format(table=name, rows=first), (audit_id,)).fetchall()
    if not found:
        return ""
    names = [each for each in found[0] if each != "audit_id"]
    lines = [names, ["---"] * len(names), *([_cell(row[each]) for each in names] for row in found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
