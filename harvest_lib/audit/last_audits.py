"""The last audits in `harvest_audit.summary`: of an outbox, and of topics."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from harvest_lib.audit.summary import AuditSummary, require_summary
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.translation import translated

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
# Audits of these topics alone, so that no number covers other topics.
_OURS_ALONE = """
(SELECT bool_and(outbox = %(outbox)s) AND array_agg(kafka_topic) = %(topics)s::text[]
 FROM harvest_audit.audited AS a WHERE a.audit_id = s.audit_id)
"""


def last_audits(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    topics: Sequence[str],
    *,
    prefix: str = "",
    alone: bool = False,
    most: int = 1,
) -> Sequence[AuditSummary] | None:
    """Return the last audits that covered this outbox and all the topics, the newest first. Return None if there is no
    table of audits.

    Only audits whose ids begin with `prefix` count; with `alone`, only audits of no other topic. Raises
    OutboxTableError if the table lacks columns, or DatabaseError.
    """
    with translated(), connection.cursor(row_factory=dict_row) as cursor:
        found = {row["attname"] for row in cursor.execute(_COLUMNS)}
        if not found:
            return None
        require_summary(found)
        columns = sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(AuditSummary))
        ours = sql.SQL(_OURS_ALONE if alone else _OURS)
        named = str(outbox.placed(connection) if outbox.exists(connection) else outbox)
        query = sql.SQL(_LAST).format(columns=columns, ours=ours, most=sql.Literal(most))
        rows = cursor.execute(query, {"prefix": prefix, "outbox": named, "topics": list(topics)}).fetchall()
    return [AuditSummary(**row) for row in rows]


def rows_query(audit_ids: Sequence[str], table: str) -> str:
    """Return a query, to be typed, of all rows of audits in a table of findings, such as `lost`."""
    listed = sql.SQL(", ").join(map(sql.Literal, audit_ids)).as_string(None)
    return f"SELECT * FROM harvest_audit.{table} WHERE audit_id IN ({listed})"  # noqa: S608 - literals
