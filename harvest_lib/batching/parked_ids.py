"""Records that one subscription's shard has parked, by id: the table `<outbox>_parked_ids`. Records stay in the outbox.

Promises
- Only the present leader writes: each statement locks the subscription's row and compares the epoch, so that the
  leader that raises it finds either all of a write, or none and none later.
- A write is on disk when it returns.
- An entry is of one row: that with its id and transaction id. Another row with the same id (`TRUNCATE … RESTART
  IDENTITY`) is not parked, and an entry whose row is gone holds nobody.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg import sql

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.database import in_statement, translated
from harvest_lib.outbox.parked_queries import BY_HASH, MATCHES
from harvest_lib.outbox.parked_record import HeldKey
from harvest_lib.source import Selection

_MATCHING = """
SELECT s.id FROM {parked_ids} AS s
WHERE s.subscription = %(subscription)s AND s.id = ANY(%(ids)s::bigint[]) AND {s_matches}
"""

_LOAD = """
SELECT kafka_topic, kafka_key, CASE WHEN %(each)s THEN id ELSE 0 END AS one, min(id) FROM {parked_ids} AS s
WHERE subscription = %(subscription)s AND shard = %(shard)s AND {s_matches} GROUP BY 1, 2, 3
"""

_LEADS = """
leads AS (
  SELECT FROM {subscriptions}
  WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s FOR SHARE
)
"""

# Entries of other rows with these ids, which make room. Not an update, for which another privilege would be needed.
_REPLACE = f"""
WITH {_LEADS}
DELETE FROM {{parked_ids}} AS s USING leads
WHERE s.subscription = %(subscription)s AND s.id = ANY(%(ids)s::bigint[]) AND NOT {{s_matches}}
"""  # noqa: S608 - it is above

# A record that is parked again is not to be retried any longer. No transaction has the id 0: a row that is gone has it.
_ADD = f"""
WITH {_LEADS}, added AS (
  INSERT INTO {{parked_ids}} AS s (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)
  SELECT %(subscription)s, %(shard)s, r.*, coalesce(
    (SELECT o.{{transaction_id}} FROM {{outbox}} AS o WHERE o.{{id}} = r.id LIMIT 1), '0'::xid8
  ) FROM leads, unnest(
    %(ids)s::bigint[], %(topics)s::text[], %(keys)s::text[], %(reasons)s::text[], %(helds)s::boolean[]
  ) AS r (id, kafka_topic, kafka_key, reason, held)
  ON CONFLICT (subscription, id) DO UPDATE SET reason = excluded.reason, held = false, retry = false
  WHERE NOT excluded.held
)
SELECT count(*) FROM leads
"""  # noqa: S608 - it is above


# The lowest of a key in its topic is parked, and keeps the others, unless somebody has dropped it or wants it sent. If
# the lowest is held, the row of the parked record before it is gone.
_MOVED = """
SELECT known.topic, known.key
FROM unnest(%(topics)s::text[], %(keys)s::text[], %(ids)s::bigint[]) AS known (topic, key, id)
LEFT JOIN {parked_ids} AS s ON s.subscription = %(subscription)s AND s.id = known.id
WHERE s.id IS NULL OR s.held OR s.retry OR NOT {s_matches}
"""

_DUE = """
WITH listed AS (
  SELECT s.id, s.kafka_topic, s.kafka_key, s.retry,
    min(s.id) FILTER (WHERE NOT s.held AND NOT s.retry) OVER (PARTITION BY s.kafka_topic, s.kafka_key) AS stays,
    max(s.id) OVER (PARTITION BY s.kafka_topic, s.kafka_key) AS last
  FROM (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(keys)s::text[]) AS each (topic, key)) AS moved
  JOIN {parked_ids} AS s
    ON s.kafka_topic = moved.topic AND s.kafka_key = moved.key AND s.subscription = %(subscription)s
    AND s.shard = %(shard)s
  WHERE {s_matches}
)
SELECT id, kafka_topic, kafka_key, id = last FROM listed
WHERE stays IS NULL OR id < stays OR (retry AND NOT %(keep_order)s)
ORDER BY row_number() OVER (PARTITION BY kafka_topic, kafka_key ORDER BY id), id LIMIT %(limit)s
"""

_FEW_KEYS = 100
"""So many keys may each have all entries read, whatever the plan; more are compared by a hash."""

_RELEASE = f"""
WITH {_LEADS}, released AS (
  DELETE FROM {{parked_ids}} AS s USING leads WHERE s.subscription = %(subscription)s AND s.id = ANY(%(ids)s::bigint[])
)
SELECT count(*) FROM leads
"""  # noqa: S608 - as above


class Entry(NamedTuple):
    """One record to be parked."""

    id: int
    topic: str
    key: str
    reason: str
    held: bool


class ParkedIds:
    """The rows of the subscription and shard that `checkpoints` leads. Used by the same thread. `rows` selects the
    outbox's rows, which distinguish entries.

    All calls raise DatabaseUnavailable when the database cannot be asked.
    """

    def __init__(
        self,
        checkpoints: CheckpointTable,
        table: sql.Identifier,
        subscriptions: sql.Identifier,
        rows: Selection,
    ) -> None:
        self._checkpoints = checkpoints
        names = {
            "parked_ids": in_statement(table),
            "subscriptions": in_statement(subscriptions),
            "outbox": in_statement(rows.table),
            **{each: in_statement(rows.columns[each]) for each in ("id", "transaction_id")},
        }
        names["s_matches"] = sql.SQL(MATCHES).format(**names)
        self._matching, self._load, self._replace, self._add, self._moved, self._due, self._release = (
            sql.SQL(each).format(**names) for each in (_MATCHING, _LOAD, _REPLACE, _ADD, _MOVED, _DUE, _RELEASE)
        )

    def matching(self, ids: Sequence[int]) -> set[int]:
        """Return those of the ids that are listed, and of the rows that have them now."""
        values = {**self._checkpoints.holder, "ids": list(ids)}
        with translated():
            rows = self._checkpoints.connected().execute(self._matching, values).fetchall()
        return {record_id for (record_id,) in rows}

    def load(self, *, each: bool) -> list[tuple[HeldKey, int]]:
        """Return keys with their topics, and ids: of each the lowest, or `each` there is."""
        values = {**self._checkpoints.holder, "each": each}
        with translated():
            rows = self._checkpoints.connected().execute(self._load, values).fetchall()
        return [((topic, key), record_id) for topic, key, _, record_id in rows]

    def add(self, entries: Sequence[Entry]) -> bool:
        """Park records: one that is there already is parked if it was held, and never held if it was parked.
        False if we were fenced."""
        values: dict[str, Any] = {
            **self._checkpoints.holder,
            "ids": [entry.id for entry in entries],
            "topics": [entry.topic for entry in entries],
            "keys": [entry.key for entry in entries],
            "reasons": [entry.reason for entry in entries],
            "helds": [entry.held for entry in entries],
        }
        with translated():
            connection = self._checkpoints.connected()
            with connection.transaction():
                connection.execute(self._replace, values)
                row = connection.execute(self._add, values).fetchone()
        return row is not None and bool(row[0])

    def moved(self, known: Sequence[tuple[HeldKey, int]]) -> list[HeldKey]:
        """Return the keys of those of the parked records that somebody has dropped, or wants sent."""
        values = {**self._checkpoints.holder, **_apart([key for key, _ in known]), "ids": [each for _, each in known]}
        with translated():
            rows = self._compared(self._moved, values, len(known))
        return [(topic, key) for topic, key in rows]

    def due(self, keys: Sequence[HeldKey], limit: int, *, keep_order: bool) -> dict[int, HeldKey | None]:
        """Return the ids of the keys' records that may be sent: those behind none that stays parked. The first of each
        key come first, then the second: so a long run of one key delays no other key. The last that is listed of a key
        has that key, others None."""
        values = {**self._checkpoints.holder, **_apart(keys), "limit": limit, "keep_order": keep_order}
        with translated():
            rows = self._compared(self._due, values, len(keys))
        return {record_id: (topic, key) if is_last else None for record_id, topic, key, is_last in rows}

    def _compared(self, statement: sql.Composed, values: dict[str, Any], keys: int) -> list[tuple[Any, ...]]:
        connection = self._checkpoints.connected()
        if keys <= _FEW_KEYS:
            return connection.execute(statement, values).fetchall()
        with connection.transaction():
            connection.execute(BY_HASH)
            return connection.execute(statement, values).fetchall()

    def release(self, ids: Sequence[int]) -> bool:
        """Forget records, which are in Kafka by now or nowhere any more; False if we were fenced."""
        values = {**self._checkpoints.holder, "ids": list(ids)}
        with translated():
            row = self._checkpoints.connected().execute(self._release, values).fetchone()
        return row is not None and bool(row[0])


def _apart(keys: Sequence[HeldKey]) -> dict[str, list[str]]:
    return {"topics": [topic for topic, _ in keys], "keys": [key for _, key in keys]}
