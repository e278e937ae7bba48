"""The mark source: mark, purge and reset on goharvest's table.

Promises
- A mark takes the head of the table, by id, that this leader id has not taken: what is new, what failed and was reset,
  and what another leader left behind, all by one statement. Rows come back sorted: RETURNING is not.
- A purge deletes by id whoever holds the mark: the caller was told by Kafka that these records are there, and a row
  that a deposed leader marked in between would otherwise be sent a second time, out of order.
- A purge that follows a new connection spares rows that nobody has marked: after a failover their ids may have been
  given to records that were never sent.
- A reset touches only rows that still carry this leader's id: a deposed leader cannot unmark its successor's rows.
- All three go by batch, and each is durable (`synchronous_commit=on`) when it returns. The barrier rests on that: the
  next record of a key may leave only when the one before can never come back.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.database import connect, translated
from harvest_lib.record import Row

# The head goes through an array, so that the update walks the primary key whatever the statistics say: as a join it
# turns into a scan of the whole table once they are stale.
_MARK = """
UPDATE {table} SET leader_id = %(leader)s
WHERE id = ANY(ARRAY(
  SELECT id FROM {table} WHERE leader_id IS NULL OR leader_id <> %(leader)s ORDER BY id LIMIT %(limit)s FOR UPDATE
))
RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values
"""

_PURGE = "DELETE FROM {table} WHERE id = ANY(%(ids)s)"

_PURGE_MARKED = _PURGE + " AND leader_id IS NOT NULL"

_RESET = "UPDATE {table} SET leader_id = NULL WHERE id = ANY(%(ids)s) AND leader_id = %(leader)s"


_STATEMENT_TIMEOUT_SECONDS = 30


class MarkSource:
    """`Source` over one table that a leader marks and purges. `table` is the quoted name."""

    def __init__(self, conninfo: str, table: sql.Identifier) -> None:
        self._conninfo = conninfo
        # In a statement with values psycopg reads a % even inside a quoted name.
        name = sql.SQL(table.as_string(None).replace("%", "%%"))
        self._mark = sql.SQL(_MARK).format(table=name)
        self._purge = sql.SQL(_PURGE).format(table=name)
        self._purge_marked = sql.SQL(_PURGE_MARKED).format(table=name)
        self._reset = sql.SQL(_RESET).format(table=name)
        self._connection: psycopg.Connection[Any] | None = None
        self._leader_id = UUID(int=0)
        self._reconnected = False

    def open(self, leader_id: UUID) -> None:
        self._leader_id = leader_id
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
            with translated():
                # A plan made while the outbox was empty scans the whole table, and would be kept until the next
                # ANALYZE: a mark then took 1.5 s instead of 20 ms with 168,000 rows waiting.
                self._connection.execute("SET plan_cache_mode = force_custom_plan")
                # Behind a lock that is never released we would lead for good and deliver nothing.
                self._connection.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT_SECONDS}s'")
            self._reconnected = True

    def fetch(self, limit: int) -> list[Row]:
        with translated():
            rows: list[Row] = (
                self._cursor().execute(self._mark, {"leader": self._leader_id, "limit": limit}, prepare=True).fetchall()
            )
        self._reconnected = False
        rows.sort(key=lambda row: row[0])
        return rows

    def acknowledge(self, ids: Sequence[int]) -> None:
        with translated():
            # Behind a new connection there may be another server, that lost our rows and gave their ids to new ones.
            purge = self._purge_marked if self._reconnected else self._purge
            self._cursor().execute(purge, {"ids": list(ids)}, prepare=True)

    def reset(self, ids: Sequence[int]) -> None:
        with translated():
            self._cursor().execute(self._reset, {"ids": list(ids), "leader": self._leader_id}, prepare=True)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _cursor(self) -> psycopg.Cursor[Any]:
        if self._connection is None:
            raise psycopg.OperationalError("not connected")
        return self._connection.cursor(binary=True)
