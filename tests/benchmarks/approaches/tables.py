"""The tables: an outbox that is only read, one with the same records that is marked, and the keys that writers lock."""

import psycopg

_CREATE = """
DROP SCHEMA IF EXISTS approaches CASCADE;
CREATE SCHEMA approaches;
CREATE TABLE approaches.outbox (
  id             BIGSERIAL PRIMARY KEY,
  transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id(),
  create_time    TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  kafka_key      VARCHAR(100) NOT NULL,
  number         BIGINT NOT NULL,
  kafka_value    VARCHAR(10000)
);
CREATE INDEX ON approaches.outbox (transaction_id, id);
CREATE INDEX ON approaches.outbox (create_time);
CREATE TABLE approaches.marked (
  id             BIGSERIAL PRIMARY KEY,
  create_time    TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  kafka_key      VARCHAR(100) NOT NULL,
  number         BIGINT NOT NULL,
  kafka_value    VARCHAR(10000),
  leader_id      UUID
);
CREATE TABLE approaches.keys (key TEXT PRIMARY KEY, version BIGINT NOT NULL DEFAULT 0);
"""

_FILL = """
DO $$ BEGIN
  FOR lot IN 0 .. ({records} - 1) / {lot} LOOP
    INSERT INTO approaches.outbox (create_time, kafka_key, number, kafka_value)
    SELECT now() - ({records} - lot * {lot} - g) * interval '1 ms', 'key-' || (lot * {lot} + g) % 10000,
           (lot * {lot} + g) / 10000, left(repeat(md5(g::text), 7), 200)
    FROM generate_series(1, least({lot}, {records} - lot * {lot})) g;
    COMMIT;
  END LOOP;
END $$
"""

_COPY = """
INSERT INTO approaches.marked (create_time, kafka_key, number, kafka_value)
SELECT create_time, kafka_key, number, kafka_value FROM approaches.outbox ORDER BY id
"""

_LOT = 10
"""Records of one transaction in a backlog."""


def create(dsn: str) -> None:
    """Create the tables again, empty."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CREATE)


def fill(dsn: str, records: int) -> None:
    """Make a backlog as 1,000 records a second leave it in small transactions, the same in both outboxes."""
    create(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(_FILL.format(records=records, lot=_LOT))
        connection.execute(_COPY)
        connection.execute("VACUUM ANALYZE approaches.outbox, approaches.marked")
        connection.execute("CHECKPOINT")


def drop(dsn: str) -> None:
    """Leave nothing behind."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS approaches CASCADE")
