"""The sink's SQL, except the promotion, which `statement` builds. Braces stand for identifiers, `%(name)s` for bound
values.

In the staging table an *attempt* has the id of the transaction that wrote its rows, `pg_current_xact_id()`. A task
commits once per partition, so a retry, a speculative copy and a commit without acknowledgement each have their own id.
Spark's task attempt id would do as well, but to get that id the JDBC writer would need a Python worker for every
partition: staging took twice as long (29,000 instead of 59,000 rows/s, 2 cores).
"""

from typing import LiteralString

from psycopg import sql

# Unlogged: a crash empties the table, and the batch is staged again. All rows of a run have the same batch and run. If
# the server allows that, both are settings of the tasks' sessions: sent with each row, both would be much of the data.
CREATE_STAGING: LiteralString = """
CREATE UNLOGGED TABLE {staging} (
    batch     text NOT NULL DEFAULT current_setting('outbox_sink.batch'),
    run       uuid NOT NULL DEFAULT current_setting('outbox_sink.run')::uuid,
    partition integer NOT NULL,
    attempt   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    row       bigint NOT NULL,
    row_hash  bigint NOT NULL {row_hash},
    {columns}
)
"""
# For a table that hashes its rows itself. Hash partitioning relies on this function too, so no version of Postgres
# changes its results.
ROW_HASH: LiteralString = "GENERATED ALWAYS AS (hash_record_extended(ROW({names}), 0)) STORED"
DROP_STAGING: LiteralString = "DROP TABLE {staging}"
# Without this lock a task could commit rows between the check and the drop.
LOCK_STAGING: LiteralString = "LOCK TABLE {staging} IN ACCESS EXCLUSIVE MODE NOWAIT"

PLACE_OF = """
SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%(table)s)
"""

COLUMNS_OF = """
SELECT
    a.attname::text AS name,
    -- Without the length of text: a cast to that would cut the text off instead of failing.
    format_type(a.atttypid, CASE WHEN format_type(a.atttypid, -1) ~ '(char|bit)' THEN -1 ELSE a.atttypmod END) AS type,
    CASE WHEN a.atttypid = 'varchar'::regtype AND a.atttypmod > 4 THEN a.atttypmod - 4 END AS longest_chars,
    a.attnotnull AS required,
    CASE
        WHEN a.attidentity <> '' THEN format('nextval(%%L::regclass)', pg_get_serial_sequence(%(table)s, a.attname))
        WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid)
    END AS filled_by,
    a.attgenerated <> '' AS generated
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# Columns whose types do not fit. These fit: types that Postgres converts without loss (a number too large for a
# narrower column is an error), and text for types that Spark lacks: json, uuid, enumerations, addresses. A domain
# counts as its base type.
MISFITS = """
WITH pair AS (
    SELECT name, given, wanted, g.oid AS g, coalesce(nullif(w.typbasetype, 0), w.oid) AS w, w.typcategory AS category
    FROM unnest(%(names)s::text[], %(given)s::text[], %(wanted)s::text[]) AS p (name, given, wanted)
    JOIN pg_type g ON g.oid = to_regtype(given)
    JOIN pg_type w ON w.oid = to_regtype(wanted)
)
SELECT name, given, wanted FROM pair
WHERE g <> w
  AND NOT EXISTS (SELECT FROM pg_cast c WHERE (c.castsource, c.casttarget) = (g, w) AND c.castcontext = 'i')
  AND (g::regtype::text, w::regtype::text) NOT IN (
    ('bigint', 'integer'), ('bigint', 'smallint'), ('integer', 'smallint'), ('double precision', 'real'))
  AND NOT (g = 'text'::regtype AND category IN ('U', 'E', 'I') AND w <> 'bytea'::regtype)
ORDER BY name
"""

STAGES_APART = "SELECT current_user::text FROM pg_namespace WHERE nspname = %(schema)s"

# Advisory locks carry the table's oid, so that `flights` and `public.flights` are the same lock.
TRY_LOCK_BATCH = """
SELECT pg_try_advisory_lock(hashtextextended('batch ' || %(batch)s, %(ledger)s::regclass::oid::bigint))
"""
UNLOCK_BATCH = """
SELECT pg_advisory_unlock(hashtextextended('batch ' || %(batch)s, %(ledger)s::regclass::oid::bigint))
"""
LOCK_OUTBOX = "SELECT pg_advisory_xact_lock(hashtextextended('outbox promotion', %(outbox)s::regclass::oid::bigint))"

ENTRY = "rows, content_hash, run, promoted_at, staging_seconds, promote_seconds"

LEDGER_ENTRY: LiteralString = f"SELECT {ENTRY} FROM {{ledger}} WHERE batch = %(batch)s"  # noqa: S608 - a constant of this module

ATTEMPTS: LiteralString = """
SELECT
    partition, attempt::text AS attempt, count(*) AS rows, sum(row_hash) AS hash_sum, max(row) + 1 = count(*) AS whole
FROM {staging} WHERE run = %(run)s
GROUP BY partition, attempt
"""

STAGED_BATCHES: LiteralString = "SELECT DISTINCT batch FROM {staging}"

ANY_STAGED: LiteralString = "SELECT FROM {staging} LIMIT 1"

# A speculative copy of a task that lost the race may still be about to commit: Spark does not wait for it.
END_WRITERS = """
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = %(writer)s
"""

# Rows that will never be promoted: `{dead}` is one of these conditions.
DEAD_OF_BATCH: LiteralString = "batch = %(batch)s"
DEAD_OF_RUN: LiteralString = "batch = %(batch)s AND run <= %(run)s OR run < %(oldest)s"

CLEAR_STAGING: LiteralString = "DELETE FROM {staging} WHERE {dead}"

OTHERS_STAGED: LiteralString = "SELECT FROM {staging} WHERE NOT ({dead}) LIMIT 1"

EMPTY_STAGING: LiteralString = "TRUNCATE {staging}"

# Times and numbers have the same text in keys, values and headers, whatever the role's settings.
ONE_SPELLING = """
SELECT
    set_config('TimeZone', 'UTC', true),
    set_config('DateStyle', 'ISO, YMD', true),
    set_config('IntervalStyle', 'iso_8601', true),
    set_config('extra_float_digits', '1', true)
"""

# A batch is sorted as a whole; with the default `work_mem` Postgres would sort it in pieces of 4 MB.
MORE_TO_SORT_IN = """
SELECT set_config('work_mem', greatest(pg_size_bytes(current_setting('work_mem')) / 1024, 64 * 1024) || 'kB', true)
"""

NOW = "SELECT clock_timestamp()"

NOW_MILLISECONDS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# Begins a task of the data source. The transaction is its attempt; the staging table's defaults read the settings.
BEGIN_ATTEMPT = """
SELECT
    pg_current_xact_id()::text,
    set_config('outbox_sink.batch', %(batch)s, true),
    set_config('outbox_sink.run', %(run)s, true),
    set_config('TimeZone', 'UTC', true),
    set_config('DateStyle', 'ISO, YMD', true)
"""

COPY_ROWS: LiteralString = "COPY {staging} (partition, row, {columns}) FROM STDIN"

COPY_RECORDS: LiteralString = "COPY {outbox} ({columns}) FROM STDIN (FORMAT binary)"

# `now()` is the start of the promotion's transaction.
ENTER_LEDGER: LiteralString = f"""
INSERT INTO {{ledger}} (batch, rows, content_hash, run, promoted_at, staging_seconds, promote_seconds)
SELECT %(batch)s, %(rows)s, %(content_hash)s, %(run)s, at, round(%(staging_seconds)s::numeric, 3),
  round(extract(epoch FROM at - now())::numeric, 3)
FROM clock_timestamp() AS at
RETURNING {ENTRY}
"""  # noqa: S608 - a constant of this module


def as_sql(text: str) -> sql.SQL:
    """Return text that comes from Postgres itself (a type, a default) as SQL, without quoting."""
    return sql.SQL(text)
