"""SQL with which the leader of a shard reads and writes the shard's row. {table} is the table of subscriptions."""

FIRST = """
INSERT INTO {table} (subscription, shard, shards, source) VALUES (%(subscription)s, 0, %(shards)s, %(source)s)
ON CONFLICT (subscription, shard) DO NOTHING
"""

LEAD = """
INSERT INTO {table} AS s (subscription, shard, shards, source, epoch, leader_id)
VALUES (%(subscription)s, %(shard)s, %(shards)s, %(source)s, 1, %(leader_id)s)
ON CONFLICT (subscription, shard) DO UPDATE SET epoch = s.epoch + 1, leader_id = excluded.leader_id, updated_at = now()
WHERE s.epoch = coalesce(%(after)s::bigint, s.epoch) OR s.leader_id = ANY (%(tried)s::uuid[])
RETURNING generation, epoch, until::text, checkpoint
"""

RENEW = """
UPDATE {table} SET epoch = epoch + 1, updated_at = now()
WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
RETURNING generation, epoch, until::text, checkpoint
"""

SAVE = """
UPDATE {table} SET low_watermark = %(low_watermark)s::pg_snapshot, retention_hold = %(retention_hold)s,
  checkpoint = %(checkpoint)s, updated_at = now()
WHERE subscription = %(subscription)s AND shard = %(shard)s
  AND generation = %(generation)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
  AND coalesce((checkpoint ->> 'number')::bigint, 0) <= %(number)s
  AND coalesce((checkpoint ->> 'witness')::bigint, 0) < (%(checkpoint)s::jsonb ->> 'witness')::bigint
"""

LAST = """
SELECT epoch, leader_id, checkpoint, generation FROM {table}
WHERE subscription = %(subscription)s AND shard = %(shard)s
"""

# Like SAVE, this statement compares the witness, because a statement of a lost connection may still arrive, and must
# not undo later statements.
VOUCH = """
UPDATE {table} SET checkpoint = checkpoint || %(witness)s, updated_at = now()
WHERE subscription = %(subscription)s AND shard = %(shard)s AND checkpoint IS NOT NULL
  AND coalesce((checkpoint ->> 'witness')::bigint, 0) < (%(witness)s::jsonb ->> 'witness')::bigint
  AND generation = %(generation)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
"""

LIST_LEADERS = """
UPDATE {table} SET checkpoint = checkpoint || %(leaders)s::jsonb
WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
  AND checkpoint IS NOT NULL
"""

STATUS = """
SELECT generation, until::text, checkpoint FROM {table}
WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
"""
RIVAL = ", leader -> 'rival'"
# The statements above compare the leader id in addition to the epoch, since the epochs of a row begin again if the row
# is removed and created again.
