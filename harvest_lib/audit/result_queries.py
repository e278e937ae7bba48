"""The SQL (Postgres) of the result tables in the schema `harvest_audit`."""

from typing import LiteralString

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

ANY_MISSING = """
SELECT name FROM unnest(%(tables)s::text[]) AS name WHERE to_regclass('harvest_audit.' || name) IS NULL LIMIT 1
"""

SUMMARY_COLUMNS = "SELECT * FROM harvest_audit.summary LIMIT 0"

# Two concurrent CREATE … IF NOT EXISTS can both find nothing, and one of the two then fails.
LOCK_DDL = "SELECT pg_advisory_xact_lock(hashtextextended('harvest_audit ddl', 0))"
LOCK_AUDIT = "SELECT pg_advisory_xact_lock(hashtextextended('harvest_audit ' || %(audit_id)s, 0))"

CLEAR_OLD_STAGING = "DELETE FROM harvest_audit.staging WHERE staged_at < clock_timestamp() - interval '2 days'"
CLEAR_STAGING = "DELETE FROM harvest_audit.staging WHERE run = %(run)s"

STAGE = """
COPY harvest_audit.staging (run, kind, record, duplicate, outbox_id, outbox_id_before, leader, leader_before,
                            kafka_topic, kafka_partition, kafka_offset, since) FROM STDIN
"""

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
