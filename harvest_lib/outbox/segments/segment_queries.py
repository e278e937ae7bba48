"""SQL for segments, their creation and their retention. Names in braces are filled in quoted, with each % doubled."""

# The filenodes of the sequence and of the segment. A restart of the sequence (TRUNCATE … RESTART IDENTITY, ALTER
# SEQUENCE … RESTART) gives the sequence a new file, and TRUNCATE gives the segment a new file.
_FILES = (
    "concat(pg_relation_filenode(pg_get_serial_sequence(%(outbox)s, 'id')::regclass), ' ', "
    "pg_relation_filenode({segment}))"
)

FILES = f"SELECT {_FILES.format(segment='%(segment)s::regclass')}"

_SEGMENT = "(quote_ident(%(schema)s) || '.' || quote_ident(segment))::regclass::oid"

LIST = f"""
SELECT c.relname::text, n.nspname::text, pg_get_expr(c.relpartbound, c.oid), i.inhdetachpending,
       CASE WHEN s.open_then::text <> '1:1:' AND s.files = f.files THEN s.passed_at END,
       CASE WHEN s.files = f.files THEN s.closed_at END, f.files
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN {{segments}} AS s ON s.segment = c.relname
CROSS JOIN LATERAL (SELECT {_FILES.format(segment="c.oid")} AS files) AS f
WHERE i.inhparent = %(outbox)s::regclass
"""  # noqa: S608 - it is above

OWNER = """
SELECT pg_get_userbyid(relowner)::text, pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s::regclass
"""

BYTES = "SELECT pg_total_relation_size(%s::regclass)"

SEQUENCE = "SELECT pg_get_serial_sequence(%(outbox)s, 'id')"

READABLE_SEQUENCE = """
SELECT has_sequence_privilege(name::regclass, 'SELECT') FROM pg_get_serial_sequence(%(outbox)s, 'id') AS name
"""

NEXT_ID = "SELECT last_value + is_called::int FROM {sequence}"

# A writer that can still write into a passed segment drew its ids before this statement. So the writer holds a lock on
# the outbox (an INSERT takes the lock first) or, if it drew ids in advance, at least has an open transaction.
NOTE = f"""
INSERT INTO {{segments}} AS s (segment, open_then, files, writers)
SELECT segment, pg_current_snapshot(), {_FILES.format(segment=_SEGMENT)}, ARRAY(
  SELECT DISTINCT virtualtransaction FROM pg_locks
  WHERE locktype = 'relation' AND pid IS DISTINCT FROM pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation IN (%(outbox)s::regclass::oid, {_SEGMENT})
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
)
FROM unnest(%(names)s::text[]) AS segment
ON CONFLICT (segment) DO UPDATE
SET (passed_at, open_then, writers, files) =
    (clock_timestamp(), excluded.open_then, excluded.writers, excluded.files)
WHERE s.open_then::text = '1:1:'
"""  # noqa: S608 - it is above

# Invalidates the rows of segments that the sequence will pass again. The statement sets the initial snapshot instead of
# deleting the rows, because roles without DELETE run it too.
REOPEN = """
UPDATE {segments} SET closed_at = NULL, open_then = '1:1:', writers = '{{}}'
WHERE segment = ANY(%(names)s) AND open_then::text <> '1:1:' AND NOT leaving
"""

# A single query reads the locks, because two queries could miss a transaction that is prepared between the queries.
# After a restart of the server, a prepared transaction no longer has the virtual transaction id that was stored, but it
# still has its lock on the segment that it wrote into.
_HOLDS_UP = """
WITH locks AS MATERIALIZED (SELECT locktype, database, relation, virtualtransaction, pid FROM pg_locks),
here AS (SELECT oid FROM pg_database WHERE datname = current_database())
"""

CLOSE = f"""{_HOLDS_UP}
UPDATE {{segments}} AS s SET (closed_at, open_then) = (clock_timestamp(), pg_current_snapshot())
WHERE s.closed_at IS NULL AND s.segment = ANY(%(names)s)
  AND NOT EXISTS (
    SELECT FROM pg_snapshot_xip(s.open_then) AS xid WHERE NOT pg_visible_in_snapshot(xid, pg_current_snapshot())
  )
  AND NOT EXISTS (SELECT FROM locks WHERE virtualtransaction = ANY(s.writers))
  AND NOT EXISTS (
    SELECT FROM locks, here
    WHERE pid IS NULL AND locktype = 'relation' AND database = here.oid
      AND relation = (quote_ident(%(schema)s) || '.' || quote_ident(s.segment))::regclass::oid
  )
RETURNING s.segment
"""  # noqa: S608 - it is above

# Finds records written after the closing: all transactions that could write into the segment had ended by then.
WRITTEN_SINCE = """
SELECT segment FROM {segments} WHERE segment = {name} AND closed_at IS NOT NULL
  AND (SELECT transaction_id FROM {table} ORDER BY transaction_id DESC LIMIT 1) >= pg_snapshot_xmax(open_then)
"""

WAITED_FOR = f"""{_HOLDS_UP}
SELECT DISTINCT CASE WHEN pid IS NULL THEN 'a prepared transaction, see pg_prepared_xacts' ELSE 'pid ' || pid END
FROM locks, here, {{segments}} AS s
WHERE s.segment = %(name)s AND (
  virtualtransaction = ANY(s.writers)
  OR (pid IS NULL AND locktype = 'relation' AND database = here.oid
      AND relation = (quote_ident(%(schema)s) || '.' || quote_ident(s.segment))::regclass::oid))
UNION ALL
SELECT 'transaction ' || xid FROM {{segments}} AS s, pg_snapshot_xip(s.open_then) AS xid
WHERE s.segment = %(name)s AND NOT pg_visible_in_snapshot(xid, pg_current_snapshot())
"""  # noqa: S608 - as above

# The query uses ORDER BY … LIMIT 1 instead of max(), and a range instead of an equality, so that the index is the
# cheapest plan with any statistics.
UNSEEN = """
SELECT pg_snapshot_xmax(%(low_watermark)s::pg_snapshot) <= last.transaction_id OR EXISTS (
  SELECT FROM pg_snapshot_xip(%(low_watermark)s::pg_snapshot) AS xid
  WHERE xid <= last.transaction_id AND xid = (
    SELECT transaction_id FROM {table} WHERE {within} AND transaction_id >= xid ORDER BY transaction_id LIMIT 1
  )
)
FROM (SELECT transaction_id FROM {table} WHERE {within} ORDER BY transaction_id DESC LIMIT 1) AS last
"""

# A parked id whose row exists holds segments even before a leader has stored the retention hold, as after a rewind or a
# resharding of the subscription. For IS TRUE see `parked_queries.MATCHES`.
SUBSCRIPTIONS = """
SELECT s.subscription, s.shard, s.low_watermark::text,
       least(s.retention_hold, (
         SELECT a.id FROM {parked_ids} AS a WHERE a.subscription = s.subscription AND EXISTS (
           SELECT FROM {outbox} AS o WHERE o.id = a.id AND o.transaction_id = a.transaction_id
         ) IS TRUE ORDER BY a.id LIMIT 1
       ))
FROM {subscriptions} AS s ORDER BY s.subscription, s.shard
"""

PARKED_WITHIN = "SELECT min(id) FROM {parked} WHERE id < %(upper)s AND id >= %(lower)s"

KEPT = (
    "SELECT clock_timestamp() - closed_at >= make_interval(secs => %(keep)s) FROM {segments} WHERE segment = %(name)s"
)

PAST_KEEPING = "SELECT segment FROM {segments} WHERE closed_at <= clock_timestamp() - make_interval(secs => %(keep)s)"

LEAVE = "UPDATE {segments} SET leaving = %(leaving)s WHERE segment = %(name)s"

LEAVING = "SELECT segment FROM {segments} WHERE leaving ORDER BY passed_at"

FORGET = "DELETE FROM {segments} WHERE segment = %(name)s"

DETACH = "ALTER TABLE {outbox} DETACH PARTITION {segment} CONCURRENTLY"

USE = "LOCK TABLE ONLY {outbox} IN ACCESS SHARE MODE"

BRIEFLY = "SET lock_timeout = '20ms'"

# FINALIZE delays no writer. It waits for each session that has a snapshot when FINALIZE begins, one after another. With
# a shorter timeout, it would never succeed if sessions run queries of a few seconds continuously.
PATIENTLY = "SET lock_timeout = '5s'"

FINALIZE = "ALTER TABLE {outbox} DETACH PARTITION {segment} FINALIZE"

DROP = "DROP TABLE {segment}"

DELETE_FROM = "DELETE FROM {segment} WHERE id >= %s"

CUT = "harvest_cut"
"""Name of the CHECK constraint that proves the bounds of a tail with records, so that it is attached as a segment
without a scan under a lock."""

CUT_END = """
SELECT substring(pg_get_constraintdef(oid) FROM '< ''?(\\d+)')::bigint, convalidated FROM pg_constraint
WHERE conrelid = %(segment)s::regclass AND conname = %(name)s
"""

ADD_CUT = "ALTER TABLE {segment} ADD CONSTRAINT {cut} CHECK (id >= {lower} AND id < {upper}) NOT VALID"

VALIDATE_CUT = "ALTER TABLE {segment} VALIDATE CONSTRAINT {cut}"

DROP_CUT = "ALTER TABLE {segment} DROP CONSTRAINT {cut}"

LOCK = "LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE"

IS_EMPTY = "SELECT pg_relation_size(%s::regclass) = 0"

PLAIN_DETACH = "ALTER TABLE {outbox} DETACH PARTITION {segment}"

RENAME = "ALTER TABLE {segment} RENAME TO {name}"

ATTACH = "ALTER TABLE {outbox} ATTACH PARTITION {segment} FOR VALUES FROM ({lower}) TO ({upper})"

LOCK_SEQUENCE = "ALTER SEQUENCE {sequence} AS bigint"
"""Statement that locks the sequence and changes nothing; no other kind of statement locks a sequence. nextval waits
until the transaction ends."""

# Whatever writers put into create_time, a segment is not older than the moment when the sequence passed the segment
# before it, if this moment is stored. Infinite times do not count, and neither do times in the future: a writer
# invented them, or a clock was set back since.
AGE = """
SELECT extract(epoch FROM clock_timestamp() - greatest(
  min(create_time) FILTER (WHERE isfinite(create_time) AND create_time <= clock_timestamp()),
  (SELECT max(passed_at) FROM {segments} WHERE passed_at <= clock_timestamp())
))::float8
FROM (SELECT create_time FROM {segment} ORDER BY id LIMIT 100) AS first
HAVING count(*) > 0
"""

SEQUENCE_FILE = "SELECT pg_relation_filenode(%(sequence)s::regclass)::text"

# ALTER SEQUENCE, the lock, has given the sequence a new file. This statement writes the new file into the rows that
# have the former file, so that they stay valid.
KEEP_NOTES = """
UPDATE {segments} SET files = concat(pg_relation_filenode(%(sequence)s::regclass), ' ', split_part(files, ' ', 2))
WHERE split_part(files, ' ', 1) = %(file)s
"""

MOVE_SEQUENCE = "SELECT setval(%(sequence)s::regclass, greatest(%(id)s, last_value), true) FROM {sequence}"
