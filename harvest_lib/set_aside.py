"""What one subscription's shard could not send, by id: the table `<outbox>_set_aside`. Records stay in the outbox.

Promises
- Only the present leader writes: each statement locks the subscription's row and compares the epoch, so that whoever
  raises it finds either all of a write, or none and none later.
- A write is on disk when it returns.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg import sql

from harvest_lib.checkpoint import Checkpoints
from harvest_lib.database import in_statement, translated

_LOAD = """
SELECT kafka_key, CASE WHEN %(each)s THEN id ELSE 0 END AS one, min(id) FROM {set_aside}
WHERE subscription = %(subscription)s AND shard = %(shard)s GROUP BY 1, 2
"""

_LEADS = """
leads AS (
  SELECT FROM {subscriptions}
  WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s FOR SHARE
)
"""

# What is parked once more is not to be retried any longer.
_ADD = f"""
WITH {_LEADS}, added AS (
  INSERT INTO {{set_aside}} AS s (subscription, shard, id, kafka_topic, kafka_key, reason, held)
  SELECT %(subscription)s, %(shard)s, r.* FROM leads, unnest(
    %(ids)s::bigint[], %(topics)s::text[], %(keys)s::text[], %(reasons)s::text[], %(helds)s::boolean[]
  ) AS r
  ON CONFLICT (subscription, id) DO UPDATE SET reason = excluded.reason, held = false, retry = false
  WHERE NOT excluded.held
)
SELECT count(*) FROM leads
"""  # noqa: S608 - it is above


class Entry(NamedTuple):
    """One record to be set aside."""

    id: int
    topic: str
    key: str
    reason: str
    held: bool


class SetAside:
    """The rows of the subscription and shard that `checkpoints` leads. Used by the same thread.

    All calls raise DatabaseUnavailable when the database cannot be asked.
    """

    def __init__(self, checkpoints: Checkpoints, table: sql.Identifier, subscriptions: sql.Identifier) -> None:
        self._checkpoints = checkpoints
        names = {"set_aside": in_statement(table), "subscriptions": in_statement(subscriptions)}
        self._load, self._add = (sql.SQL(each).format(**names) for each in (_LOAD, _ADD))

    def load(self, *, each: bool) -> list[tuple[str, int]]:
        """Return keys and ids: of each key the lowest, or `each` there is."""
        values = {**self._checkpoints.holder, "each": each}
        with translated():
            rows = self._checkpoints.connected().execute(self._load, values).fetchall()
        return [(key, record_id) for key, _, record_id in rows]

    def add(self, entries: Sequence[Entry]) -> bool:
        """Set records aside: one that is there already is parked if it was held, and never held if it was parked.
        False if we were deposed."""
        values: dict[str, Any] = {
            **self._checkpoints.holder,
            "ids": [entry.id for entry in entries],
            "topics": [entry.topic for entry in entries],
            "keys": [entry.key for entry in entries],
            "reasons": [entry.reason for entry in entries],
            "helds": [entry.held for entry in entries],
        }
        with translated():
            row = self._checkpoints.connected().execute(self._add, values).fetchone()
        return row is not None and bool(row[0])
