"""The statement that selects an outbox's committed records with the state of each record. Both audits use it: `harvest
audit`'s comparison in a single process, and the audit by Spark.

The statement has no parameters, and each % stands once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from harvest_lib.audit.records import MUST_COME, PARKED, WAITS
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.source.filters import filter_conditions
from harvest_lib.subscriptions.delivered import delivered
from harvest_lib.subscriptions.shards import SubscriptionShard

# The bytes of a key as in Kafka. In `SQL_ASCII` they may be no valid text, and are not converted.
KEY_ENCODING: LiteralString = "CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END"

OUTBOX: LiteralString = """
SELECT o.id AS part, o.id AS record, CASE WHEN isfinite(o.create_time) THEN o.create_time END AS since,
       CASE WHEN {is_parked} THEN {parked_} WHEN {passed} THEN {must_come} ELSE {waits} END AS state,
       o.kafka_topic AS topic, convert_to(o.kafka_key, {encoding}) AS key, {content} AS content
FROM {outbox} AS o WHERE o.kafka_topic = ANY ({topics}::text[]) {filters}
"""

# With `=` alone Postgres may hash all parked rows for a few records; with `IS TRUE` it can only use the index.
IS_PARKED: LiteralString = (
    "EXISTS (SELECT FROM {parked_ids} AS s WHERE s.subscription = {subscription} AND s.id = o.id "
    "AND (s.transaction_id = o.transaction_id) IS TRUE)"
)

_COLUMNS: Mapping[str, sql.Composable] = {
    name: sql.Identifier("o", name) for name in ("id", "transaction_id", "kafka_topic", "kafka_key")
}


def outbox_query(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    shards: Sequence[SubscriptionShard],
    *,
    topics: Sequence[str],
    content: sql.Composable,
    rows: sql.Composable | None = None,
) -> sql.Composed:
    """Return the statement for the records of the topics that pass the subscription's filter.

    `content` is an SQL expression over the columns of `o`. `rows` replaces the table in the statement: a query in
    parentheses with the columns of a native table.
    """
    filters = filter_conditions(shards[0].topics, shards[0].keys, _COLUMNS) if shards else []
    placed = outbox.placed(connection)
    is_parked: sql.Composable = sql.SQL("false")
    if shards and placed.parked_ids.exists(connection):
        is_parked = sql.SQL(IS_PARKED).format(
            parked_ids=placed.parked_ids.identifier, subscription=sql.Literal(shards[0].name)
        )
    return sql.SQL(OUTBOX).format(
        outbox=rows or outbox.identifier,
        topics=sql.Literal(list(topics)),
        is_parked=is_parked,
        encoding=sql.SQL(KEY_ENCODING),
        content=content,
        passed=delivered(shards, _COLUMNS),
        filters=sql.Composed([sql.SQL(" AND ({})").format(unbound(each)) for each in filters]),
        **states(),
    )


def states() -> dict[str, sql.Literal]:
    """Return the states as the placeholders of statements name them."""
    return {"must_come": sql.Literal(MUST_COME), "waits": sql.Literal(WAITS), "parked_": sql.Literal(PARKED)}


def unbound(condition: sql.Composable) -> sql.SQL:
    """Return the condition for a statement without parameters: each doubled % in the condition becomes a single %."""
    return sql.SQL(condition.as_string(None).replace("%%", "%"))


def shows_all_rows(connection: psycopg.Connection[Any], *tables: OutboxTable) -> bool:
    """Return True if policies of row-level security apply to one of the tables. A table may be missing. Raises
    DatabaseAccessDenied if rows of a table are hidden."""
    with hiding_named():
        return check_all_rows(connection, [each.identifier for each in tables])


@contextmanager
def hiding_named() -> Iterator[None]:
    """Raise DatabaseAccessDenied again with an explanation why an audit with hidden rows is refused."""
    try:
        yield
    except DatabaseAccessDenied as error:
        raise DatabaseAccessDenied(
            "row-level security hides rows from the audit: records missing in Kafka could be among them",
            evidence=error.evidence,
            next_step="as the owner, CREATE POLICY … FOR SELECT TO this user USING (true), or ALTER ROLE … BYPASSRLS",
        ) from error
