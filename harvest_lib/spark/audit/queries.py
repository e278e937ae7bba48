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

# The bytes of a key as in Kafka. In `SQL_ASCII` they may be no valid text, and are not converted.
KEY_ENCODING: LiteralString = "CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END"

# Null in `SQL_ASCII`, where bytes that are no valid text reach Kafka in several forms. A tombstone has no bytes: 0.
CONTENT = """
CASE WHEN getdatabaseencoding() <> 'SQL_ASCII'
     THEN ('x' || rpad(encode({content}, 'hex'), 16, '0'))::bit(64)::bigint END
"""

OUTBOX: LiteralString = """
SELECT o.id AS part, o.id AS record, CASE WHEN isfinite(o.create_time) THEN o.create_time END AS since,
       CASE WHEN {is_parked} THEN {parked_} WHEN {passed} THEN {must_come} ELSE {waits} END AS state,
       o.kafka_topic AS topic, convert_to(o.kafka_key, {encoding}) AS key, {content} AS content
FROM {outbox} AS o WHERE o.kafka_topic = ANY ({topics}::text[]) {filters}
"""


def within(statement: str, ranges: Sequence[tuple[int, int]]) -> str:
    """Return a statement that selects rows with `part` in one of the ranges, both ends included."""
    lows, highs = (",".join(map(str, ends)) for ends in zip(*ranges, strict=True))
    return (
        f"SELECT every.* FROM ({statement}) AS every "  # noqa: S608 - integers
        f"JOIN unnest('{{{lows}}}'::bigint[], '{{{highs}}}'::bigint[]) AS r(low, high) "
        "ON every.part BETWEEN r.low AND r.high"
    )


# With `=` alone Postgres may hash all parked rows for a few records; with `IS TRUE` it can only use the index.
IS_PARKED: LiteralString = (
    "EXISTS (SELECT FROM {parked_ids} AS s WHERE s.subscription = {subscription} AND s.id = o.id "
    "AND (s.transaction_id = o.transaction_id) IS TRUE)"
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

CREATE_TABLES = """
CREATE SCHEMA IF NOT EXISTS harvest_audit;
CREATE TABLE IF NOT EXISTS harvest_audit.summary (
    audit_id               text PRIMARY KEY,
    at                     timestamptz NOT NULL,
    records                bigint NOT NULL,
    committed              bigint NOT NULL,
    lost                   bigint NOT NULL,
    duplicates_adjacent    bigint NOT NULL,
    duplicates_separated   bigint NOT NULL,
    duplicates_cross_epoch bigint NOT NULL,
    reordered              bigint NOT NULL,
    unknown                bigint NOT NULL,
    foreign_messages       bigint NOT NULL,
    delay_p50_ms           double precision,
    delay_p95_ms           double precision,
    delay_p99_ms           double precision,
    delay_max_ms           double precision,
    backlog_records        bigint NOT NULL,
    backlog_age_seconds    double precision NOT NULL,
    keys                   bigint,
    keys_with_gaps         bigint,
    other_contents         bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS harvest_audit.audited (
    audit_id    text NOT NULL,
    outbox      text NOT NULL,
    kafka_topic text NOT NULL,
    PRIMARY KEY (audit_id, kafka_topic)
);
CREATE TABLE IF NOT EXISTS harvest_audit.lost (
    audit_id text NOT NULL,
    record   text NOT NULL,
    since    timestamptz,
    PRIMARY KEY (audit_id, record)
);
CREATE TABLE IF NOT EXISTS harvest_audit.duplicates (
    audit_id        text NOT NULL,
    kind            text NOT NULL,
    record          text NOT NULL,
    outbox_id       bigint NOT NULL,
    kafka_topic     text NOT NULL,
    kafka_partition integer NOT NULL,
    kafka_offset    bigint NOT NULL,
    leader_id       uuid,
    leader_before   uuid,
    PRIMARY KEY (audit_id, kafka_topic, kafka_partition, kafka_offset)
);
CREATE TABLE IF NOT EXISTS harvest_audit.reorderings (
    audit_id         text NOT NULL,
    record           text NOT NULL,
    outbox_id        bigint NOT NULL,
    outbox_id_before bigint NOT NULL,
    kafka_topic      text NOT NULL,
    kafka_partition  integer NOT NULL,
    kafka_offset     bigint NOT NULL,
    PRIMARY KEY (audit_id, kafka_topic, kafka_partition, kafka_offset)
);
CREATE TABLE IF NOT EXISTS harvest_audit.unknown (
    audit_id        text NOT NULL,
    record          text NOT NULL,
    outbox_id       bigint NOT NULL,
    kafka_topic     text NOT NULL,
    kafka_partition integer NOT NULL,
    kafka_offset    bigint NOT NULL,
    leader_id       uuid,
    PRIMARY KEY (audit_id, kafka_topic, kafka_partition, kafka_offset)
);
-- Spark commits once per task: the promotion recognizes by its place what a retried task has written twice.
CREATE UNLOGGED TABLE IF NOT EXISTS harvest_audit.staging (
    run              text NOT NULL,
    staged_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind             text NOT NULL,
    duplicate        text,
    record           text NOT NULL,
    outbox_id        bigint,
    outbox_id_before bigint,
    leader           text,
    leader_before    text,
    kafka_topic      text,
    kafka_partition  integer,
    kafka_offset     bigint,
    since            timestamptz
);
"""

SUMMARY_COLUMNS = "SELECT * FROM harvest_audit.summary LIMIT 0"

# Two concurrent CREATE … IF NOT EXISTS can both find nothing, and one of the two then fails.
LOCK_DDL = "SELECT pg_advisory_xact_lock(hashtextextended('harvest_audit ddl', 0))"
LOCK_AUDIT = "SELECT pg_advisory_xact_lock(hashtextextended('harvest_audit ' || %(audit_id)s, 0))"

CLEAR_OLD_STAGING = "DELETE FROM harvest_audit.staging WHERE staged_at < clock_timestamp() - interval '2 days'"
CLEAR_STAGING = "DELETE FROM harvest_audit.staging WHERE run = %(run)s"

TABLES: tuple[LiteralString, ...] = ("summary", "audited", "lost", "duplicates", "reorderings", "unknown")
FORGET: LiteralString = "DELETE FROM harvest_audit.{table} WHERE audit_id = %(audit_id)s"

PROMOTE: tuple[LiteralString, ...] = (
    """
INSERT INTO harvest_audit.lost
SELECT DISTINCT %(audit_id)s, record, since FROM harvest_audit.staging WHERE run = %(run)s AND kind = 'lost'
""",
    """
INSERT INTO harvest_audit.duplicates
SELECT DISTINCT %(audit_id)s, duplicate, record, outbox_id, kafka_topic, kafka_partition, kafka_offset, leader::uuid,
       leader_before::uuid
FROM harvest_audit.staging WHERE run = %(run)s AND kind = 'duplicate'
""",
    """
INSERT INTO harvest_audit.reorderings
SELECT DISTINCT %(audit_id)s, record, outbox_id, outbox_id_before, kafka_topic, kafka_partition, kafka_offset
FROM harvest_audit.staging WHERE run = %(run)s AND kind = 'reordered'
""",
    """
INSERT INTO harvest_audit.unknown
SELECT DISTINCT %(audit_id)s, record, outbox_id, kafka_topic, kafka_partition, kafka_offset, leader::uuid
FROM harvest_audit.staging WHERE run = %(run)s AND kind = 'unknown'
""",
)

SAY_WHAT = """
INSERT INTO harvest_audit.audited SELECT DISTINCT %(audit_id)s, %(outbox)s, unnest(%(topics)s::text[])
"""
SUMMARIZE: LiteralString = "INSERT INTO harvest_audit.summary ({names}) VALUES ({values})"
