"""All SQL of the flights job. Braces are identifiers, `%(name)s` are bound values.

The staging table knows an *attempt* by the transaction that wrote it: Spark's JDBC writer commits once per partition,
so a retried task, a speculative copy and a commit whose acknowledgement was lost are each one transaction, and
`pg_current_xact_id()` tells them apart. Spark's own task attempt id says the same, but needs a Python worker for every
partition: staging took twice as long (29,000 instead of 59,000 rows/s, 2 cores).
"""

from typing import LiteralString

CREATE_TABLES: LiteralString = """
CREATE TABLE IF NOT EXISTS {business} (
    flight_id      bigserial PRIMARY KEY,
    year           integer NOT NULL,
    month          integer NOT NULL,
    day            integer NOT NULL,
    dep_time       integer,
    sched_dep_time integer NOT NULL,
    dep_delay      integer,
    arr_time       integer,
    sched_arr_time integer NOT NULL,
    arr_delay      integer,
    carrier        text NOT NULL,
    flight         integer NOT NULL,
    tail_number    text,
    origin         text NOT NULL,
    dest           text NOT NULL,
    air_time       integer,
    distance       integer NOT NULL,
    hour           integer NOT NULL,
    minute         integer NOT NULL,
    time_hour      timestamptz NOT NULL,
    batch          text NOT NULL
);
-- Unlogged: a crash empties it, the counts then differ, and the batch is staged again.
CREATE UNLOGGED TABLE IF NOT EXISTS {staging} (
    batch          text NOT NULL,
    run            text NOT NULL,
    partition      integer NOT NULL,
    attempt        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    row            bigint NOT NULL,
    row_hash       bigint NOT NULL,
    year           integer,
    month          integer,
    day            integer,
    dep_time       integer,
    sched_dep_time integer,
    dep_delay      integer,
    arr_time       integer,
    sched_arr_time integer,
    arr_delay      integer,
    carrier        text,
    flight         integer,
    tail_number    text,
    origin         text,
    dest           text,
    air_time       integer,
    distance       integer,
    hour           integer,
    minute         integer,
    time_hour      timestamptz
);
CREATE TABLE IF NOT EXISTS {ledger} (
    batch        text PRIMARY KEY,
    rows         bigint NOT NULL,
    content_hash text NOT NULL,
    run          text NOT NULL,
    promoted_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""

COLUMNS_OF = """
SELECT n.nspname, c.relname, array_agg(a.attname::text)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.oid = to_regclass(%(table)s)
GROUP BY n.nspname, c.relname
"""

# Two concurrent CREATE TABLE IF NOT EXISTS can both find nothing, and one then fails.
LOCK_DDL = "SELECT pg_advisory_xact_lock(hashtextextended('spark_jobs ddl', 0))"

# Advisory locks carry the table's oid, so that `flights` and `public.flights` are the same lock.
TRY_LOCK_BATCH = """
SELECT pg_try_advisory_lock(hashtextextended('batch ' || %(batch)s, %(ledger)s::regclass::oid::bigint))
"""
UNLOCK_BATCH = """
SELECT pg_advisory_unlock(hashtextextended('batch ' || %(batch)s, %(ledger)s::regclass::oid::bigint))
"""
LOCK_OUTBOX = "SELECT pg_advisory_xact_lock(hashtextextended('outbox promotion', %(outbox)s::regclass::oid::bigint))"

LEDGER_ENTRY: LiteralString = "SELECT rows, content_hash, run, promoted_at FROM {ledger} WHERE batch = %(batch)s"

ATTEMPTS: LiteralString = """
SELECT partition, attempt::text AS attempt, count(*) AS rows, sum(row_hash) AS hash_sum
FROM {staging} WHERE batch = %(batch)s AND run = %(run)s
GROUP BY partition, attempt
"""

# The declared order. It is total on the real data (no two rows agree on its first five columns); rows of one partition
# that do agree stay as Spark read them.
PROMOTE: LiteralString = """
WITH inserted AS (
    INSERT INTO {business} (
        year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier, flight,
        tail_number, origin, dest, air_time, distance, hour, minute, time_hour, batch)
    SELECT
        year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier, flight,
        tail_number, origin, dest, air_time, distance, hour, minute, time_hour, batch
    FROM {staging}
    WHERE batch = %(batch)s AND run = %(run)s AND (partition, attempt) IN (
        SELECT * FROM unnest(%(partitions)s::integer[], %(attempts)s::text[]::xid8[]))
    ORDER BY time_hour, sched_dep_time, carrier, flight, origin, partition, row
    RETURNING
        flight_id, year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier,
        flight, tail_number, origin, dest, air_time, distance, hour, minute, time_hour
)
INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT
    clock_timestamp(),
    %(topic)s,
    coalesce(tail_number, carrier || flight),
    row_to_json(inserted)::text,
    ARRAY['event-type', 'batch', 'event-id'],
    ARRAY[%(event_type)s, %(batch)s, flight_id::text]
FROM inserted
ORDER BY flight_id
"""

CLEAR_STAGING: LiteralString = "DELETE FROM {staging} WHERE batch = %(batch)s"

ENTER_LEDGER: LiteralString = """
INSERT INTO {ledger} (batch, rows, content_hash, run)
VALUES (%(batch)s, %(rows)s, %(content_hash)s, %(run)s)
RETURNING rows, content_hash, run, promoted_at
"""
