"""SQL for subscribers that do not run `harvest`: a table of positions, and statements to poll and to advance."""

from psycopg import sql

from harvest_lib.config.columns import ColumnMapping, Constant, Part
from harvest_lib.outbox.table import OutboxTable

# Parameters are written as variables of psql. `publication_id` is compared with the column that `columns` configures
# as the topic.
_TEMPLATE = """\
-- Subscribers of {table} in plain SQL. The variables, :'name', are psql's; in a program bind them.
--
-- The position is (transaction id, record id). No record is skipped: a poll returns only records of transactions older
-- than every open transaction, so no record can appear below the position later. The price: an idle writing transaction
-- delays every subscriber, and records of concurrent transactions come in the order of their begins, not their ends.

-- 1. Once: the table of positions.
CREATE TABLE IF NOT EXISTS {subscribers} (
  subscription_id               VARCHAR(250) PRIMARY KEY,
  publication_id                VARCHAR(250) NOT NULL,
  last_processed_transaction_id XID8 NOT NULL DEFAULT '0',
  last_processed_position       BIGINT NOT NULL DEFAULT 0
);

-- 2. Once for each subscriber: its publication, read from the beginning.
INSERT INTO {subscribers} (subscription_id, publication_id)
VALUES (:'subscription_id', :'publication_id') ON CONFLICT (subscription_id) DO NOTHING;

-- 3. Poll, in a transaction that 4 ends: while a process has a batch in hand, other processes of its name wait here.
--    The lock takes no transaction id. Write nothing in this transaction until the batch is processed: from its first
--    write to its end it is an open transaction like others, and every subscriber of any name waits for it.
--    READ COMMITTED: a session that has waited has to see the present position.
--    synchronous_commit: no position is on disk before the records that it has passed.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL synchronous_commit = on;
SELECT pg_advisory_xact_lock(hashtextextended({name} || ' ' || :'subscription_id', 0));

SELECT record.*
FROM {subscribers} AS subscriber
CROSS JOIN LATERAL (
  SELECT {id} AS position, {transaction_id} AS transaction_id,
         {parts}
  FROM {table} AS record
  WHERE {publication} = subscriber.publication_id
    AND ({transaction_id}, {id})
      > (subscriber.last_processed_transaction_id, subscriber.last_processed_position)
    AND {transaction_id} < pg_snapshot_xmin(pg_current_snapshot())
  ORDER BY {transaction_id}, {id} LIMIT 100
) AS record
WHERE subscriber.subscription_id = :'subscription_id'
ORDER BY record.transaction_id, record.position;

-- 4. Process the batch, then advance to its last record. After a crash before the commit the batch is read again.
UPDATE {subscribers}
SET last_processed_transaction_id = :'transaction_id', last_processed_position = :'position'
WHERE subscription_id = :'subscription_id'
  AND (last_processed_transaction_id, last_processed_position) < (:'transaction_id'::xid8, :'position'::bigint);
COMMIT;
"""


def subscribers_sql(outbox: OutboxTable, mapping: ColumnMapping | None = None) -> str:
    """Return the SQL for an outbox. The table of positions is `subscribers`, in the schema of the outbox."""
    columns = mapping or ColumnMapping(headers={})
    subscribers = OutboxTable((*outbox.parts[:-1], "subscribers"))
    named = {"key": columns.kafka_key, "value": columns.kafka_value, **columns.headers}
    parts = [
        sql.SQL("{} AS {}").format(_column(part), sql.Identifier(name))
        for name, part in named.items()
        if name not in {"position", "transaction_id"}
    ]
    statements = sql.SQL(_TEMPLATE).format(
        table=outbox.identifier,
        subscribers=subscribers.identifier,
        name=sql.Literal(f"harvest subscriber {subscribers}"),
        id=_column(columns.id),
        transaction_id=_column(columns.transaction_id),
        parts=sql.SQL(", ").join(parts),
        publication=_column(columns.kafka_topic),
    )
    return statements.as_string(None)


def _column(part: Part) -> sql.Composable:
    return sql.Literal(part.value) if isinstance(part, Constant) else sql.Identifier("record", part)
