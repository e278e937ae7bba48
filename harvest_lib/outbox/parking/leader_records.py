"""Parking of rows that a leader has marked: whole rows move into the table of parked records.

Promises
- Only rows that are still marked with this leader's id move.
- A key is not released while further records of the key are being held, because both operations lock the table.
- If a row is put back, each column has the value that was written, even the exact text of JSON.
- A parked record stays before later records of its key, even if the outbox gives out ids again from the beginning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.outbox.parking.parked_queries import LOCK
from harvest_lib.outbox.parking.parked_row import columns_statement, record_of
from harvest_lib.postgres.database import in_statement, rendered

_ANY_PARKED = "(SELECT EXISTS (SELECT FROM {parked}))"

# The first parked record of each key in its topic.
_PARKED_KEYS = """
SELECT kafka_topic, kafka_key, min(id) FROM {parked} WHERE kafka_key = ANY(%(keys)s) GROUP BY kafka_topic, kafka_key
"""

# This lock conflicts with `LOCK`, but not with itself: sessions that mark do not wait for each other.
_KEEP_PARKED = "LOCK TABLE {parked} IN ROW EXCLUSIVE MODE"

# After TRUNCATE … RESTART IDENTITY, new records get the ids of parked records. If a new record with such an id has to
# be parked too, this statement gives new ids to all parked records of the old record's key. The new ids are lower than
# all other ids, and in the same order.
_MAKE_ROOM = """
WITH taken AS (
  SELECT DISTINCT p.kafka_topic, p.kafka_key FROM {parked} AS p JOIN {table} AS o ON o.id = p.id
  WHERE p.id = ANY(%(ids)s::bigint[]) AND o.leader_id = %(leader)s
), older AS (
  SELECT p.id, least(0, (SELECT min(id) FROM {parked})) - row_number() OVER (ORDER BY p.id DESC) AS below
  FROM {parked} AS p JOIN taken ON taken.kafka_topic = p.kafka_topic AND taken.kafka_key = p.kafka_key
), moved AS (
  DELETE FROM {parked} AS p USING older WHERE p.id = older.id RETURNING p.*, older.below
)
INSERT INTO {parked} (id, kafka_topic, kafka_key, reason, held, parked_at, record)
SELECT below, kafka_topic, kafka_key, reason, held, parked_at, record || jsonb_build_object('id', below) FROM moved
"""

_PARK = """
WITH moved AS (
  DELETE FROM {table} AS o USING unnest(%(ids)s::bigint[], %(reasons)s::text[]) AS refused (id, reason)
  WHERE o.id = refused.id AND o.leader_id = %(leader)s
  RETURNING o.id, o.kafka_topic, o.kafka_key, refused.reason, {row} || '{{"leader_id": null}}' AS record
)
INSERT INTO {parked} (id, kafka_topic, kafka_key, reason, held, record)
SELECT id, kafka_topic, kafka_key, reason, false, record FROM moved
"""

_HOLD = """
WITH moved AS (
  DELETE FROM {table} AS o
  USING (
    SELECT kafka_topic AS topic, kafka_key AS key, min(id) AS id FROM {parked}
    WHERE kafka_key IN (SELECT kafka_key FROM {table} WHERE id = ANY(%(ids)s::bigint[]))
    GROUP BY kafka_topic, kafka_key
  ) AS first
  WHERE o.id = ANY(%(ids)s::bigint[]) AND o.leader_id = %(leader)s AND first.topic = o.kafka_topic
    AND first.key = o.kafka_key AND o.id > first.id
  RETURNING o.id, o.kafka_topic, o.kafka_key, first.id AS behind, {row} || '{{"leader_id": null}}' AS record
)
INSERT INTO {parked} (id, kafka_topic, kafka_key, reason, held, record)
SELECT id, kafka_topic, kafka_key, 'held behind ' || behind, true, record FROM moved
RETURNING id
"""


class ParkingMoves:
    """Moves marked rows of the outbox `table` into its table of parked records. Methods raise errors of psycopg."""

    def __init__(self, table: sql.Identifier, parked: sql.Identifier) -> None:
        names = {"table": in_statement(table), "parked": in_statement(parked)}
        self.any_parked = sql.SQL(_ANY_PARKED).format(**names)
        """SQL expression: true if any record is parked."""
        self._any_parked = rendered(sql.SQL("SELECT ") + sql.SQL(_ANY_PARKED).format(parked=parked))
        self._keep_parked = sql.SQL(_KEEP_PARKED).format(parked=parked)
        self._parked_keys = sql.SQL(_PARKED_KEYS).format(**names)
        self._lock_parked = sql.SQL(LOCK).format(parked=parked)
        self._make_room = sql.SQL(_MAKE_ROOM).format(**names)
        self._names = names
        self._columns = columns_statement(table)
        self._park, self._hold = self._moving(())

    def _moving(self, columns: Sequence[tuple[str, bool]]) -> tuple[sql.Composed, sql.Composed]:
        """Return two statements for a table with these columns: the first parks rows, the second holds rows."""
        row = record_of(columns)
        return sql.SQL(_PARK).format(**self._names, row=row), sql.SQL(_HOLD).format(**self._names, row=row)

    def is_any(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if any record is parked."""
        return connection.execute(self._any_parked, prepare=True).fetchone() == (True,)

    def keep(self, connection: psycopg.Connection[Any]) -> None:
        """Block sessions that park, retry or drop until this transaction ends."""
        connection.execute(self._keep_parked)

    def first_of_keys(self, connection: psycopg.Connection[Any], keys: set[str]) -> dict[tuple[str, str], int]:
        """Return the lowest parked id of each (topic, key) with parked records. Only the keys in `keys` count."""
        found = connection.execute(self._parked_keys, {"keys": list(keys)}).fetchall()
        return {(topic, key): first for topic, key, first in found}

    def move(
        self, connection: psycopg.Connection[Any], leader_id: UUID, refused: Mapping[int, str], behind: Sequence[int]
    ) -> frozenset[int]:
        """Park the rows `refused`, each with its reason. Hold the rows of `behind` that follow a parked record of their
        key. Return the ids of `behind` that were not held."""
        try:
            held = self._move(connection, leader_id, refused, behind)
        except psycopg.errors.UniqueViolation:  # records that were parked earlier have the same ids
            with connection.transaction():
                connection.execute(self._lock_parked)
                values = {"ids": array_of([*refused, *behind]), "leader": leader_id}
                connection.execute(self._make_room, values)
                held = self._move(connection, leader_id, refused, behind)
        return frozenset(behind) - {record_id for (record_id,) in held}

    def _move(
        self, connection: psycopg.Connection[Any], leader_id: UUID, refused: Mapping[int, str], behind: Sequence[int]
    ) -> Sequence[tuple[int]]:
        """Move rows into the table of parked records, and return the ids of `behind` that moved."""
        with connection.transaction():
            connection.execute(self._lock_parked)
            park, hold = self._moving(connection.execute(self._columns).fetchall())
            if refused:
                reasons = list(refused.values())
                values = {"ids": array_of(refused), "reasons": reasons, "leader": leader_id}
                connection.execute(park, values)
            if not behind:
                return []
            return connection.execute(hold, {"ids": array_of(behind), "leader": leader_id}).fetchall()


def array_of(ids: Iterable[int]) -> str:
    """Format ids as an array literal of Postgres. The adapter of psycopg would take a microsecond for each id, which is
    a tenth of the total time for a record."""
    return f"{{{','.join(map(str, ids))}}}"
