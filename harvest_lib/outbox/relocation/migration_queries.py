"""SQL of `migration` and `restamp`. In statements with parameters, names are filled in with each % doubled."""

STATE = """
SELECT c.relkind::text, pg_get_userbyid(c.relowner), c.relrowsecurity, c.relforcerowsecurity,
       obj_description(c.oid, 'pg_class'),
       (SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = c.oid AND attname = 'id'),
       (SELECT attidentity <> '' FROM pg_attribute WHERE attrelid = c.oid AND attname = 'id'),
       (SELECT format_type(atttypid, NULL) FROM pg_attribute
        WHERE attrelid = c.oid AND attname = 'transaction_id' AND NOT attisdropped),
       EXISTS (
         SELECT FROM pg_attribute AS a JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = c.oid AND a.attname = 'transaction_id' AND a.attnotnull
           AND pg_get_expr(d.adbin, d.adrelid) = 'pg_current_xact_id()')
FROM pg_class AS c WHERE c.oid = to_regclass(%(outbox)s)
"""

# Finds two kinds of objects: objects that would refer to the first segment instead of the outbox after the swap, and
# objects that a partitioned table cannot have.
OBSTACLES = """
SELECT 'the view ' || view.oid::regclass || ' reads it' FROM pg_depend AS d
JOIN pg_rewrite AS r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
JOIN pg_class AS view ON view.oid = r.ev_class
WHERE d.refobjid = %(outbox)s::regclass AND view.oid <> d.refobjid
UNION
SELECT 'the foreign key ' || conname || ' of ' || conrelid::regclass || ' refers to it' FROM pg_constraint
WHERE contype = 'f' AND confrelid = %(outbox)s::regclass
UNION
SELECT 'the publication ' || quote_ident(p.pubname) || ' names it' FROM pg_publication_rel AS r
JOIN pg_publication AS p ON p.oid = r.prpubid WHERE r.prrelid = %(outbox)s::regclass
UNION
SELECT 'the unique index ' || i.indexrelid::regclass || ' does not include id' FROM pg_index AS i
WHERE i.indrelid = %(outbox)s::regclass AND i.indisunique AND NOT (
  SELECT attnum FROM pg_attribute WHERE attrelid = i.indrelid AND attname = 'id') = ANY(i.indkey)
UNION
SELECT 'there is an exclusion constraint ' || conname FROM pg_constraint
WHERE contype = 'x' AND conrelid = %(outbox)s::regclass
UNION
SELECT 'the row trigger ' || tgname || ' uses a transition table' FROM pg_trigger
WHERE tgrelid = %(outbox)s::regclass AND NOT tgisinternal AND tgtype & 1 = 1
  AND (tgoldtable IS NOT NULL OR tgnewtable IS NOT NULL)
UNION
SELECT 'the rule ' || rulename || ' rewrites it' FROM pg_rewrite
WHERE ev_class = %(outbox)s::regclass AND rulename <> '_RETURN'
UNION
SELECT inhrelid::regclass || ' inherits from it' FROM pg_inherits WHERE inhparent = %(outbox)s::regclass
UNION
SELECT 'it inherits from ' || inhparent::regclass FROM pg_inherits WHERE inhrelid = %(outbox)s::regclass
UNION
SELECT 'the constraint ' || quote_ident(conname) || ' was never validated' FROM pg_constraint
WHERE conrelid = %(outbox)s::regclass AND contype <> 'f' AND NOT convalidated AND conname <> %(cut)s
UNION
SELECT 'there is no primary key (id)' WHERE NOT EXISTS (
  SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attname = 'id'
  WHERE i.indrelid = %(outbox)s::regclass AND i.indisprimary AND i.indkey::text = a.attnum::text)
"""

ADD_COLUMN = "ALTER TABLE {outbox} ADD COLUMN transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id()"

ADD_BOUND = "ALTER TABLE {segment} ADD CONSTRAINT {cut} CHECK (id < {upper}) NOT VALID"

INDEX_IS_VALID = """
SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(index)s) AND indrelid = %(outbox)s::regclass
"""

DROP_INDEX = "DROP INDEX CONCURRENTLY {index}"

CREATE_INDEX = "CREATE INDEX CONCURRENTLY {name} ON {outbox} (transaction_id, id)"

CREATE_PARENT = "CREATE TABLE {outbox} (LIKE {first} INCLUDING ALL) PARTITION BY RANGE (id)"

DEFAULTS = """\
ALTER TABLE {outbox} ALTER create_time SET DEFAULT clock_timestamp(),
  ALTER kafka_header_keys SET DEFAULT '{{}}', ALTER kafka_header_values SET DEFAULT '{{}}'"""

OWNER = "ALTER TABLE {outbox} OWNER TO {owner}"

OWNED_BY = "ALTER SEQUENCE {sequence} OWNED BY {outbox}.id"

ATTACH_FIRST = "ALTER TABLE {outbox} ATTACH PARTITION {first} FOR VALUES FROM (MINVALUE) TO ({upper})"

GRANTS = """
SELECT DISTINCT acl.grantee = 0, CASE WHEN acl.grantee = 0 THEN '' ELSE pg_get_userbyid(acl.grantee) END,
       acl.privilege_type, acl.is_grantable, NULL AS column
FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS acl
WHERE c.oid = %(outbox)s::regclass
UNION ALL
SELECT DISTINCT acl.grantee = 0, CASE WHEN acl.grantee = 0 THEN '' ELSE pg_get_userbyid(acl.grantee) END,
       acl.privilege_type, acl.is_grantable, a.attname::text
FROM pg_attribute AS a, aclexplode(a.attacl) AS acl WHERE a.attrelid = %(outbox)s::regclass AND NOT a.attisdropped
ORDER BY 5 NULLS FIRST, 2, 3
"""

# Revokes all grants on the new table that default privileges gave, since they may exceed the old table's grants.
REVOKE_DEFAULTS = """\
DO $harvest$
DECLARE grantee text;
BEGIN
  FOR grantee IN
    SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END
    FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS acl
    WHERE c.oid = {name}::regclass
  LOOP EXECUTE format('REVOKE ALL ON %s FROM %s', {name}::regclass, grantee); END LOOP;
END $harvest$"""

POLICIES = """
SELECT 'CREATE POLICY ' || quote_ident(polname) || ' ON ' || polrelid::regclass
  || ' AS ' || CASE WHEN polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END
  || ' FOR ' || CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
                            ELSE 'ALL' END
  || ' TO ' || (SELECT string_agg(CASE WHEN role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(role)) END, ', ')
                FROM unnest(polroles) AS role)
  || coalesce(' USING (' || pg_get_expr(polqual, polrelid) || ')', '')
  || coalesce(' WITH CHECK (' || pg_get_expr(polwithcheck, polrelid) || ')', '')
FROM pg_policy WHERE polrelid = %(outbox)s::regclass ORDER BY polname
"""

TRIGGERS = """
SELECT tgname::text, pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger
WHERE tgrelid = %(outbox)s::regclass AND NOT tgisinternal ORDER BY tgname
"""

# -- restamp

FOREIGN = """
SELECT coalesce(
  (SELECT transaction_id FROM {outbox} ORDER BY transaction_id DESC LIMIT 1) >= pg_snapshot_xmax(pg_current_snapshot()),
  false)
"""

CREATE_WORK = "CREATE TABLE {work} (id BIGINT PRIMARY KEY)"

FILL_WORK = """
INSERT INTO {work} SELECT id FROM {outbox}
WHERE transaction_id >= (SELECT pg_snapshot_xmax(pg_current_snapshot()))
"""
# A visible row that this server wrote has a transaction id below the current xmax, so the rows found came from another
# server. All their ids are stored before the first row is changed, because the server's transaction ids rise during the
# changes, and would exceed the transaction ids of the remaining rows.

# Entries of parked ids get the new transaction ids too, since an entry matches its row by transaction id.
RESTAMP = """
WITH batch AS (
  DELETE FROM {work} WHERE id IN (SELECT id FROM {work} ORDER BY id LIMIT %(limit)s) RETURNING id
), parked AS (
  UPDATE {parked_ids} AS s SET transaction_id = pg_current_xact_id() FROM {outbox} AS o
  WHERE o.id = ANY(ARRAY(SELECT id FROM batch)) AND s.id = o.id AND s.transaction_id = o.transaction_id
), stamped AS (
  UPDATE {outbox} SET transaction_id = pg_current_xact_id() WHERE id = ANY(ARRAY(SELECT id FROM batch)) RETURNING id
)
SELECT (SELECT count(*) FROM batch), (SELECT count(*) FROM stamped)
"""

LIVE = """
SELECT subscription, shard FROM {subscriptions}
WHERE updated_at > clock_timestamp() - make_interval(secs => %(seconds)s) ORDER BY subscription, shard
"""

FROM_ELSEWHERE = """
SELECT subscription, checkpoint -> 'position' -> 'server' ->> 'system' FROM {subscriptions}
WHERE checkpoint -> 'position' -> 'server' ->> 'system' <> (SELECT system_identifier::text FROM pg_control_system())
LIMIT 1
"""
