"""The ids of records that a leader has parked: the table `<outbox>_parked_ids`. The records stay in the outbox.

Promises
- Only the current leader writes: each statement locks the subscription's row and compares the epoch. So when a new
  leader has raised the epoch, each write of an earlier leader is either complete, or will never be made.
- A write is on disk when the call returns.
- An entry belongs to the row with the same id and transaction id. A later row with the same id (after `TRUNCATE …
  RESTART IDENTITY`) is not parked, and an entry whose row no longer exists holds no key.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import sql

from harvest_lib.outbox.parking.parked_queries import BY_HASH, MATCHES
from harvest_lib.outbox.parking.parked_record import HeldKey
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

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

# Deletes entries that belong to former rows with the same ids, since an UPDATE would need another privilege.
_REPLACE = f"""
WITH {_LEADS}
DELETE FROM {{parked_ids}} AS s USING leads
WHERE s.subscription = %(subscription)s AND s.id = ANY(%(ids)s::bigint[]) AND NOT {{s_matches}}
"""  # noqa: S608 - only the constant `_LEADS` is inserted

# Parking a record again ends its retry. If the record's row no longer exists, the entry gets the transaction id 0,
# which no transaction has.
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
"""  # noqa: S608 - only the constant `_LEADS` is inserted


# The record with the lowest listed id of a topic and key is parked, and the later records of the key are held until an
# operator drops or retries the parked record. If the record with the lowest id is held, the row of the parked record
# before it no longer exists.
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
"""Up to this number of keys, the planner chooses the kind of join, which may read all entries for each key. For more
keys, a hash join is enforced."""

_RELEASE = f"""
WITH {_LEADS}, released AS (
  DELETE FROM {{parked_ids}} AS s USING leads WHERE s.subscription = %(subscription)s AND s.id = ANY(%(ids)s::bigint[])
)
SELECT count(*) FROM leads
"""  # noqa: S608 - as above


class Entry(NamedTuple):
    """A record to be parked, or, if `held`, to be held behind a parked record of its key."""

    id: int
    topic: str
    key: str
    reason: str
    held: bool


class LedRow(Protocol):
    """The subscription's row that a leader has claimed. `harvest_lib.checkpoints.table.CheckpointTable` implements
    this protocol."""

    @property
    def holder(self) -> Mapping[str, Any]:
        """The subscription, the shard and the epoch, as parameters for a statement."""

    def connected(self) -> psycopg.Connection[Any]:
        """Return the leader's connection."""


class ParkedIds:
    """The parked ids of the subscription and shard whose row `checkpoints` has claimed. The thread that uses
    `checkpoints` makes all calls. `columns` are the SQL expressions for the id and the transaction id of a row of the
    outbox, which identify the row of an entry.

    All calls raise DatabaseUnavailable if the database cannot be queried.
    """

    def __init__(
        self,
        checkpoints: LedRow,
        table: sql.Identifier,
        subscriptions: sql.Identifier,
        outbox: sql.Identifier,
        columns: Mapping[str, sql.Composable],
    ) -> None:
        self._checkpoints = checkpoints
        names = {
            "parked_ids": in_statement(table),
            "subscriptions": in_statement(subscriptions),
            "outbox": in_statement(outbox),
            **{each: in_statement(columns[each]) for each in ("id", "transaction_id")},
        }
        names["s_matches"] = sql.SQL(MATCHES).format(**names)
        self._matching, self._load, self._replace, self._add, self._moved, self._due, self._release = (
            sql.SQL(each).format(**names) for each in (_MATCHING, _LOAD, _REPLACE, _ADD, _MOVED, _DUE, _RELEASE)
        )

    def matching(self, ids: Sequence[int]) -> set[int]:
        """Return the ids among `ids` that are listed. Entries of former rows with the same ids do not count."""
        values = {**self._checkpoints.holder, "ids": list(ids)}
        with translated():
            rows = self._checkpoints.connected().execute(self._matching, values).fetchall()
        return {record_id for (record_id,) in rows}

    def load(self, *, each: bool) -> list[tuple[HeldKey, int]]:
        """Return pairs of a (topic, key) and an id: each listed (topic, key) with its lowest listed id, or, with
        `each`, with each of its listed ids."""
        values = {**self._checkpoints.holder, "each": each}
        with translated():
            rows = self._checkpoints.connected().execute(self._load, values).fetchall()
        return [((topic, key), record_id) for topic, key, _, record_id in rows]

    def add(self, entries: Sequence[Entry]) -> bool:
        """Park or hold records. A record that is listed as held can become parked, but a record that is listed as
        parked never becomes held. Return False if this leader is fenced."""
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
        """Return the keys whose first parked record an operator has dropped or retried. `known` contains pairs of a key
        and the id of the key's first parked record."""
        values = {**self._checkpoints.holder, **_apart([key for key, _ in known]), "ids": [each for _, each in known]}
        with translated():
            rows = self._compared(self._moved, values, len(known))
        return [(topic, key) for topic, key in rows]

    def due(self, keys: Sequence[HeldKey], limit: int, *, keep_order: bool) -> dict[int, HeldKey | None]:
        """Return up to `limit` listed ids of records that may be sent now, since no earlier record of their key stays
        parked. Without `keep_order`, each retried record may be sent. The first ids of all keys come first, then the
        second ids, so that a key with many records delays no other key. The result maps the last listed id of a key to
        the key, and every other id to None."""
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
        """Delete the entries of records that are in Kafka or no longer exist. Return False if this leader is fenced."""
        values = {**self._checkpoints.holder, "ids": list(ids)}
        with translated():
            row = self._checkpoints.connected().execute(self._release, values).fetchone()
        return row is not None and bool(row[0])


def _apart(keys: Sequence[HeldKey]) -> dict[str, list[str]]:
    return {"topics": [topic for topic, _ in keys], "keys": [key for _, key in keys]}
