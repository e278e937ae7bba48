"""DDL of the native table and its side tables, version 1. Names in braces are replaced by quoted names."""

CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
  id                  BIGSERIAL,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           VARCHAR(100) NOT NULL,
  kafka_value         {value_type},
  kafka_header_keys   TEXT[] NOT NULL DEFAULT '{{}}',
  kafka_header_values TEXT[] NOT NULL DEFAULT '{{}}',
  leader_id           UUID,
  transaction_id      XID8 NOT NULL DEFAULT pg_current_xact_id(),
  PRIMARY KEY (id){checks}
) PARTITION BY RANGE (id)"""

INDEX = "CREATE INDEX IF NOT EXISTS {index} ON {table} (transaction_id, id)"

SEGMENT = "CREATE TABLE IF NOT EXISTS {segment} PARTITION OF {table} FOR VALUES FROM ({lower}) TO ({upper})"

SUBSCRIPTIONS = """\
CREATE TABLE IF NOT EXISTS {subscriptions} (
  subscription   TEXT NOT NULL,
  shard          INTEGER NOT NULL,
  shards         INTEGER NOT NULL,
  source         TEXT NOT NULL CHECK (source IN ('mark', 'snapshot', 'transaction_id')),
  generation     BIGINT NOT NULL DEFAULT 0,
  epoch          BIGINT NOT NULL DEFAULT 0,
  leader_id      UUID,
  topics         TEXT[],
  keys           TEXT,
  low_watermark  PG_SNAPSHOT NOT NULL DEFAULT '1:1:',
  retention_hold BIGINT,
  until          PG_SNAPSHOT,
  checkpoint     JSONB,
  updated_at     TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  leader         JSONB,
  PRIMARY KEY (subscription, shard)
)"""

# A row for each segment that the sequence has passed. `writers`: virtual transactions that could still write into the
# segment when it was first seen as passed. `open_then`: the snapshot of that moment, replaced by the snapshot of the
# closing when the segment is closed. `files`: the filenodes of the sequence and the segment. `leaving`: a drop has
# begun.
SEGMENTS = """\
CREATE TABLE IF NOT EXISTS {segments} (
  segment   TEXT PRIMARY KEY,
  passed_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  open_then PG_SNAPSHOT NOT NULL,
  writers   TEXT[] NOT NULL,
  files     TEXT,
  closed_at TIMESTAMP WITH TIME ZONE,
  leaving   BOOLEAN NOT NULL DEFAULT false
)"""

# The table lists ids only. The records stay in the outbox, where other subscriptions may still read them. The
# transaction id distinguishes a record from a later record with the same id.
PARKED_IDS = """\
CREATE TABLE IF NOT EXISTS {parked_ids} (
  subscription TEXT NOT NULL,
  shard        INTEGER NOT NULL,
  id           BIGINT NOT NULL,
  kafka_topic  TEXT NOT NULL,
  kafka_key    TEXT NOT NULL,
  reason       TEXT NOT NULL,
  held         BOOLEAN NOT NULL,
  retry        BOOLEAN NOT NULL DEFAULT false,
  parked_at    TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  transaction_id XID8 NOT NULL,
  PRIMARY KEY (subscription, id)
);
CREATE INDEX IF NOT EXISTS {index} ON {parked_ids} USING hash (kafka_key)"""

KIND = """
SELECT c.relkind = 'p' AND EXISTS (
  SELECT FROM pg_attribute AS a
  WHERE a.attrelid = c.oid AND a.attname = 'transaction_id' AND a.atttypid = 'xid8'::regtype AND NOT a.attisdropped
)
FROM pg_class AS c WHERE c.oid = to_regclass(%s)
"""

VALUE_TYPE = """
SELECT format_type(a.atttypid, NULL) FROM pg_attribute AS a
WHERE a.attrelid = to_regclass(%s) AND a.attname = 'kafka_value' AND NOT a.attisdropped
"""

PLACE = """
SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)
"""
