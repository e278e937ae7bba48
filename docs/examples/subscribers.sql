-- Subscribers of "outbox" in plain SQL. The variables, :'name', are psql's; in a program bind them.
--
-- The position is (transaction id, record id). Nothing is skipped: only records of transactions older than every open
-- one are returned, so none can appear below the position any more. The price: one transaction that writes and idles
-- holds up everybody, and records of concurrent transactions come in the order in which these began, not ended.

-- 1. Once: the table of positions.
CREATE TABLE IF NOT EXISTS "subscribers" (
  subscription_id               VARCHAR(250) PRIMARY KEY,
  publication_id                VARCHAR(250) NOT NULL,
  last_processed_transaction_id XID8 NOT NULL DEFAULT '0',
  last_processed_position       BIGINT NOT NULL DEFAULT 0
);

-- 2. Once for each subscriber: what it reads, from the beginning.
INSERT INTO "subscribers" (subscription_id, publication_id)
VALUES (:'subscription_id', :'publication_id') ON CONFLICT (subscription_id) DO NOTHING;

-- 3. Poll, in a transaction that 4 ends: while one process has a batch in hand, others of its name wait here.
--    The lock takes no transaction id. Write nothing in this transaction until the batch is processed: from its first
--    write to its end it is an open transaction like others, and every subscriber waits for it, under all names.
--    READ COMMITTED: a session that has waited has to see where the position is now.
--    synchronous_commit: no position is on disk before the records that it has passed.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL synchronous_commit = on;
SELECT pg_advisory_xact_lock(hashtextextended('harvest subscriber "subscribers"' || ' ' || :'subscription_id', 0));

SELECT record.*
FROM "subscribers" AS subscriber
CROSS JOIN LATERAL (
  SELECT "record"."id" AS position, "record"."transaction_id" AS transaction_id,
         "record"."kafka_key" AS "key", "record"."kafka_value" AS "value"
  FROM "outbox" AS record
  WHERE "record"."kafka_topic" = subscriber.publication_id
    AND ("record"."transaction_id", "record"."id")
      > (subscriber.last_processed_transaction_id, subscriber.last_processed_position)
    AND "record"."transaction_id" < pg_snapshot_xmin(pg_current_snapshot())
  ORDER BY "record"."transaction_id", "record"."id" LIMIT 100
) AS record
WHERE subscriber.subscription_id = :'subscription_id'
ORDER BY record.transaction_id, record.position;

-- 4. Process the batch, then advance to its last record. A crash before the commit brings the batch again.
UPDATE "subscribers"
SET last_processed_transaction_id = :'transaction_id', last_processed_position = :'position'
WHERE subscription_id = :'subscription_id'
  AND (last_processed_transaction_id, last_processed_position) < (:'transaction_id'::xid8, :'position'::bigint);
COMMIT;
