"""The audit's result tables in Postgres, schema `harvest_audit`, which every audit writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from dagster_harvest.settings import OutboxSettings
from harvest_lib.audit import last_audits as audits
from harvest_lib.audit.summary import AuditSummary, together
from harvest_lib.errors import HarvestError
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.translation import translated

SCHEMA = "harvest_audit"
DETAIL_TABLES = ("lost", "duplicates", "reorderings", "unknown")
"""The tables of findings."""

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL AS found"
_SAMPLED_ROWS = 20
_PLOTTED_AUDITS = 60
_SAMPLE: LiteralString = (
    "SELECT * FROM {table} WHERE audit_id = ANY (%s) ORDER BY length(record), record, audit_id LIMIT {rows}"
)
_COUNT: LiteralString = "SELECT count(*) AS found FROM {table} WHERE audit_id = ANY (%s)"


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
    return together(last_audits(connection, settings, outbox, audit_id=audit_id, topics=topics))


def last_audits(
    connection: psycopg.Connection[Any],
    settings: OutboxSettings,
    outbox: OutboxTable,
    *,
    audit_id: str | None = None,
    topics: Sequence[str] | None = None,
) -> list[AuditSummary]:
    """Return the audits that `last_summary` combines: the last audit of each topic with `audit.by_topic`, else a single
    audit. Raises its errors."""
    if audit_id is not None or not settings.audited.by_topic:
        return _last_rows(connection, settings, outbox, topics or settings.topics, audit_id, most=1)
    found = {topic: _last_rows(connection, settings, outbox, [topic], None, most=1)[0] for topic in settings.topics}
    for topic, summary in found.items():
        require_compared(summary, settings)
        if datetime.now(UTC) - summary.at > timedelta(hours=settings.audited.fail_after_hours):
            raise AuditMissing(
                f"the topic {topic!r} was not audited for {settings.audited.fail_after_hours:g} hours",
                evidence=f"its last audit is {summary.audit_id}, of {summary.at:%Y-%m-%d %H:%M}",
                next_step=f"materialize the partition {topic!r} of {settings.audit_key.to_user_string()}",
            )
    return list(found.values())


def past_summaries(
    connection: psycopg.Connection[Any], settings: OutboxSettings, outbox: OutboxTable, topics: Sequence[str]
) -> list[AuditSummary]:
    """Return the summaries of the last 60 audits of this outbox and the topics, the oldest first. Raises AuditMissing
    or OutboxTableError."""
    return _last_rows(connection, settings, outbox, topics, None, most=_PLOTTED_AUDITS)[::-1]


def _last_rows(
    connection: psycopg.Connection[Any],
    settings: OutboxSettings,
    outbox: OutboxTable,
    topics: Sequence[str],
    audit_id: str | None,
    *,
    most: int,
) -> list[AuditSummary]:
    prefix = audit_id or settings.audited.id_prefix or ""
    alone = settings.audited.by_topic and audit_id is None
    found = audits.last_audits(connection, outbox, topics, prefix=prefix, alone=alone, most=most)
    if found:
        return list(found)
    begins = f" whose audit_id begins with {prefix!r}" if prefix else ""
    none = f"harvest_audit.summary has no audit of {outbox} and all of {', '.join(topics)}{begins}"
    raise AuditMissing(
        "nothing was audited yet",
        evidence="there is no harvest_audit.summary" if found is None else none,
        next_step=f"materialize the asset {settings.audit_key.to_user_string()}",
    )


def require_compared(summary: AuditSummary, settings: OutboxSettings) -> AuditSummary:
    """Return the summary. Raises NothingChecked if the audit compared nothing and the settings do not allow that."""
    if summary.is_empty and not settings.audited.allow_empty:
        raise summary.nothing_checked("set `allow_empty: true` below `audit`")
    return summary


def details(connection: psycopg.Connection[Any], audit_id: str) -> dict[str, int]:
    """Return the number of an audit's rows in each table of DETAIL_TABLES, 0 for a table that does not exist."""
    counted = {name: _rows(connection, _COUNT, name, [audit_id]) for name in DETAIL_TABLES}
    return {name: int(rows[0]["found"]) if rows else 0 for name, rows in counted.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """The first rows of audits in a table of findings: the ids of the records, and the rows as a Markdown table."""

    records: Sequence[str]
    markdown: str


def sample(connection: psycopg.Connection[Any], audit_ids: Sequence[str], table: str) -> FoundRows | None:
    """Return the first 20 rows of audits in a table of DETAIL_TABLES; None if there are no rows, or no such table."""
    if not (found := _rows(connection, _SAMPLE, table, audit_ids)):
        return None
    names = [each for each in found[0] if each != "audit_id"]
    lines = [names, ["---"] * len(names), *([_cell(row[each]) for each in names] for row in found)]
    markdown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return FoundRows(records=list(dict.fromkeys(str(row["record"]) for row in found)), markdown=markdown)


def _rows(
    connection: psycopg.Connection[Any], query: LiteralString, table: str, audit_ids: Sequence[str]
) -> list[dict[str, Any]]:
    with translated(), connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_EXISTS, (f"{SCHEMA}.{table}",)).fetchone()
        if row is None or not row["found"]:
            return []
        named = sql.SQL(query).format(table=sql.Identifier(SCHEMA, table), rows=sql.Literal(_SAMPLED_ROWS))
        return cursor.execute(named, (list(audit_ids),)).fetchall()


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
