"""SQL for the tables of parked records and ids. {parked} is replaced by a quoted name in which each % is doubled."""

from harvest_lib.outbox.parking.parked_row import SHOWN

CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
  id          BIGINT PRIMARY KEY,
  kafka_topic TEXT NOT NULL,
  kafka_key   TEXT NOT NULL,
  reason      TEXT NOT NULL,
  held        BOOLEAN NOT NULL,
  parked_at   TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  record      JSONB NOT NULL
);
CREATE INDEX IF NOT EXISTS {index} ON {table} USING hash (kafka_key)"""
# The index is a hash index, because a B-tree index refuses keys of more than 2,700 bytes: records with such keys could
# not be parked.

READABLE = "SELECT coalesce(has_table_privilege(to_regclass(%s), 'SELECT'), false)"

PRIVILEGES = """
SELECT has_table_privilege(to_regclass(%(table)s), 'SELECT') AND has_table_privilege(to_regclass(%(table)s), 'INSERT')
   AND has_table_privilege(to_regclass(%(table)s), 'DELETE'), current_user
"""

# A session that parks, retries or drops takes this lock first, so no key is released while a leader is holding further
# records of the key.
LOCK = "LOCK TABLE {parked} IN SHARE ROW EXCLUSIVE MODE"

_SELECTED = """
      (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
  AND (%(topics)s::text[] IS NULL OR kafka_topic = ANY(%(topics)s::text[]))
  AND (%(key)s::text IS NULL OR kafka_key = %(key)s::text)
"""

_FIELDS = """
id, kafka_topic AS topic, kafka_key AS key, reason, held, parked_at,
extract(epoch FROM greatest(clock_timestamp() - parked_at, '0'))::float8 AS age_seconds
"""

COUNT = f"""
SELECT count(*) FILTER (WHERE NOT held), count(*) FILTER (WHERE held) FROM {{parked}} WHERE {_SELECTED}
"""  # noqa: S608 - it is above

SUMMARY = """
SELECT count(*) FILTER (WHERE NOT held), count(*) FILTER (WHERE held),
       coalesce((array_agg(id ORDER BY id) FILTER (WHERE NOT held))[1:5], '{{}}'),
       coalesce((array_agg(DISTINCT kafka_topic) FILTER (WHERE NOT held))[1:5], '{{}}'),
       coalesce((array_agg(DISTINCT left(reason, 300)) FILTER (WHERE NOT held))[1:5], '{{}}'),
       coalesce(extract(epoch FROM clock_timestamp() - min(parked_at) FILTER (WHERE NOT held)), 0)::float8
FROM (SELECT id, kafka_topic, reason, held, parked_at FROM {parked} LIMIT %(most)s) AS counted
"""

LIST = f"SELECT {_FIELDS} FROM {{parked}} WHERE {_SELECTED} ORDER BY id LIMIT %(limit)s"  # noqa: S608 - as above

SHOW = f"SELECT {_FIELDS}, {SHOWN} AS row FROM {{parked}} WHERE id = %(id)s"  # noqa: S608 - as above

# The statement uses joins, since Postgres compares a long list of IN or NOT IN element by element.
TOUCHED = f"""
WITH selected AS (
  SELECT id, kafka_topic, kafka_key FROM {{parked}} WHERE {_SELECTED} AND NOT (held AND %(parked_only)s)
), keys AS (
  SELECT DISTINCT kafka_topic, kafka_key FROM selected
), staying AS (
  SELECT p.kafka_topic, p.kafka_key, min(p.id) AS id
  FROM {{parked}} AS p
  JOIN keys ON keys.kafka_topic = p.kafka_topic AND keys.kafka_key = p.kafka_key
  LEFT JOIN selected AS s ON s.id = p.id
  WHERE NOT p.held AND s.id IS NULL
  GROUP BY p.kafka_topic, p.kafka_key
)
SELECT p.id, p.held, s.id IS NOT NULL AS selected, first.id AS behind
FROM {{parked}} AS p
LEFT JOIN selected AS s ON s.id = p.id
LEFT JOIN keys ON keys.kafka_topic = p.kafka_topic AND keys.kafka_key = p.kafka_key
LEFT JOIN staying AS first
  ON first.kafka_topic = p.kafka_topic AND first.kafka_key = p.kafka_key AND first.id < p.id
WHERE s.id IS NOT NULL OR (p.held AND keys.kafka_key IS NOT NULL)
ORDER BY p.id
"""  # noqa: S608 - as above

BY_HASH = "SET LOCAL enable_nestloop = off"
"""Setting for statements with many keys. Without statistics, as just after many records were parked, Postgres could
choose a nested loop, which compares each key with each other key."""

DELETE = "DELETE FROM {parked} WHERE id = ANY(%(ids)s::bigint[])"

HOLD = """
WITH moved AS (
  DELETE FROM {parked} AS p USING unnest(%(ids)s::bigint[], %(behind)s::bigint[]) AS waiting (id, behind)
  WHERE p.id = waiting.id RETURNING p.*, waiting.behind
)
INSERT INTO {parked} (id, kafka_topic, kafka_key, reason, held, parked_at, record)
SELECT id, kafka_topic, kafka_key, 'held behind ' || behind, true, parked_at, record FROM moved
"""
# The statement deletes and inserts, since an UPDATE would need another privilege.

SHAPES = """
SELECT columns, types, array_agg(id) FROM (
  SELECT p.id, kept.* FROM {parked} AS p, LATERAL (
    SELECT array_agg(a.attname::text ORDER BY a.attnum), array_agg(
      CASE WHEN (p.record -> '') ? a.attname::text THEN format_type(a.atttypid, a.atttypmod) END ORDER BY a.attnum
    ) FROM pg_attribute AS a
    WHERE a.attrelid = %(outbox)s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
      AND (p.record ? a.attname::text OR (p.record -> '') ? a.attname::text)
      AND NOT (a.attname = 'transaction_id' AND a.atttypid = 'xid8'::regtype)
  ) AS kept (columns, types) WHERE p.id = ANY(%(ids)s::bigint[])
) AS parked GROUP BY columns, types
"""
"""Query that groups ids of records by the columns to put back, and returns the types of the columns stored as text."""

# A record that is put back gets the current transaction's id, because sources that read by transaction have already
# passed the record's original id.

PUT_BACK = """
WITH moved AS (DELETE FROM {parked} WHERE id = ANY(%(ids)s::bigint[]) RETURNING record)
INSERT INTO {outbox} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {fields} FROM moved, jsonb_populate_record(NULL::{outbox}, moved.record || '{{"leader_id": null}}') AS back
"""

# The following statements do the same for the parked ids of a subscription.

_LISTED = """
WITH parked AS (
  SELECT id, kafka_topic, kafka_key, CASE WHEN retry THEN 'to be retried: ' ELSE '' END || reason AS reason,
         {held} AS held, parked_at, {gone} AS gone
  FROM {{parked_ids}} AS s WHERE subscription = %(subscription)s AND {which}
)
"""

# An entry belongs to the row with the same id and transaction. Because of IS TRUE, Postgres looks up the row of each
# entry. Without IS TRUE, EXISTS would become a join. If statistics are missing, as just after many records were parked,
# this join would compare each entry with each row.
MATCHES = "(EXISTS (SELECT FROM {outbox} AS o WHERE o.{id} = s.id AND o.{transaction_id} = s.transaction_id) IS TRUE)"

COUNT_LISTED = _LISTED.format(held="held", gone="false", which="true") + COUNT

SUMMARY_LISTED = _LISTED.format(held="held", gone="false", which="true") + SUMMARY

_WITH_GONE = _LISTED.format(held="held", gone="NOT {matches}", which="true")

LIST_LISTED = f"{_WITH_GONE} SELECT {_FIELDS}, gone FROM {{parked}} WHERE {_SELECTED} ORDER BY id LIMIT %(limit)s"  # noqa: S608 - as above

GONE_LISTED = f"{_WITH_GONE} SELECT id FROM {{parked}} WHERE {_SELECTED} AND gone"  # noqa: S608 - as above

SHOW_LISTED = f"""
{_WITH_GONE}
SELECT {_FIELDS}, gone,
  coalesce((SELECT row_to_json(o) FROM {{outbox}} AS o WHERE {{id}} = %(id)s AND NOT gone), '{{{{}}}}') AS row
FROM {{parked}} WHERE id = %(id)s
"""  # noqa: S608 - as above

# When further records are retried, a record that already waits for its retry blocks no other record.
TOUCHED_LISTED = f"""
{_LISTED.format(held="held OR (retry AND NOT %(retried_stays)s)", gone="false", which="{matches}")}
SELECT * FROM ({TOUCHED}) AS touched ORDER BY id
"""  # noqa: S608 - as above

RETRY_LISTED = """
UPDATE {parked_ids} SET retry = true WHERE subscription = %(subscription)s AND id = ANY(%(ids)s::bigint[]) AND NOT retry
"""

DROP_LISTED = "DELETE FROM {parked_ids} WHERE subscription = %(subscription)s AND id = ANY(%(ids)s::bigint[])"
