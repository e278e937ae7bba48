"""All SQL of the audit. Braces stand for identifiers and literals, `%(name)s` for bound values.

Rows for Spark have the columns record, since and state, and a column `part` that divides the rows into parts. Spark
selects topic and key of few rows only, so Postgres does not compute topic and key of the other rows.
"""

from collections.abc import Sequence
from typing import LiteralString

from harvest_lib.postgres.database import LIFT_TIMEOUTS

INTEGERS = ("smallint", "integer", "bigint")

EXPORT = "SELECT pg_export_snapshot(), extract(epoch FROM clock_timestamp())::float8, pg_current_snapshot()::text"


def in_snapshot(snapshot: str, *, policies_apply: bool) -> str:
    """Return the first statements of a session that Spark opens. The session is in a transaction, because Spark fetches
    rows in portions.

    If `policies_apply` is True, the policies were found to show all rows. If it is False, a query that a policy would
    filter is an error. Nested loops are off, because with the statistics of an empty ledger a nested loop would compare
    each row with each.
    """
    begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
    begin = f"{begin}; SET TRANSACTION SNAPSHOT '{snapshot}'; SET LOCAL enable_nestloop = off; {LIFT_TIMEOUTS.strip()}"
    return begin if policies_apply else f"{begin}; SET LOCAL row_security = off"


BOUNDS: LiteralString = "SELECT coalesce(min({column}), 0)::bigint, coalesce(max({column}), 0)::bigint FROM {table}"

# Rows since a snapshot are found by the index on (transaction_id, id).
SINCE: LiteralString = (
    "o.transaction_id >= pg_snapshot_xmin({before}::pg_snapshot) "
    "AND NOT pg_visible_in_snapshot(o.transaction_id, {before}::pg_snapshot)"
)
BOUNDS_SINCE: LiteralString = """
SELECT coalesce(min(id), 0)::bigint, coalesce(max(id), 0)::bigint
FROM (SELECT o.id FROM {table} AS o WHERE {since} OFFSET 0) AS came
"""

COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_attribute AS a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
"""

# Null in `SQL_ASCII`, where bytes that are no valid text reach Kafka in several forms. A tombstone has no bytes: 0.
CONTENT = """
CASE WHEN getdatabaseencoding() <> 'SQL_ASCII'
     THEN ('x' || rpad(encode({content}, 'hex'), 16, '0'))::bit(64)::bigint END
"""


def within(statement: str, ranges: Sequence[tuple[int, int]]) -> str:
    """Return a statement that selects rows with `part` in one of the ranges, both ends included."""
    lows, highs = (",".join(map(str, ends)) for ends in zip(*ranges, strict=True))
    return (
        f"SELECT every.* FROM ({statement}) AS every "  # noqa: S608 - integers
        f"JOIN unnest('{{{lows}}}'::bigint[], '{{{highs}}}'::bigint[]) AS r(low, high) "
        "ON every.part BETWEEN r.low AND r.high"
    )


BUSINESS: LiteralString = """
SELECT {id} AS part, {id}::text AS record, l.promoted_at AS since
FROM {business} AS b JOIN {ledger} AS l ON l.batch = b.batch
"""

# A header of an outbox row has the id of its business row. A row without this header, or with an id that is no integer,
# belongs to no business row. In `SQL_ASCII` such an id may not even be valid text.
LEFT: LiteralString = """
SELECT o.id AS part, o.kafka_header_values[array_position(o.kafka_header_keys, {header})] AS record, {waits} AS state
FROM {outbox} AS o WHERE o.kafka_topic = ANY ({topics}::text[])
  AND o.kafka_header_values[array_position(o.kafka_header_keys, {header})] ~ '^[0-9-]+$'
"""

PARKED: LiteralString = """
UNION ALL
SELECT p.id, r.kafka_header_values[array_position(r.kafka_header_keys, {header})], {parked_}
FROM {parked} AS p, jsonb_populate_record(NULL::{outbox}, p.record) AS r
WHERE p.kafka_topic = ANY ({topics}::text[])
  AND r.kafka_header_values[array_position(r.kafka_header_keys, {header})] ~ '^[0-9-]+$'
"""

WAITING: LiteralString = """
SELECT count(*), (extract(epoch FROM min(create_time) FILTER (WHERE isfinite(create_time))) * 1000000)::bigint
FROM {outbox} WHERE kafka_topic = ANY ({topics}::text[])
"""
