"""The mark source: mark, purge and reset on goharvest's table.

Promises
- A mark takes the head of the table, by id, that this leader id has not taken: rows that are new, that failed and were
  reset, or that another leader left behind, all by one statement. Rows come back sorted: RETURNING is not.
- A purge deletes by id, regardless of the mark's holder: Kafka has confirmed these records to the caller, and a row
  that a fenced leader marked in between would otherwise be sent a second time, out of order.
- A purge that follows a new connection spares rows that nobody has marked: after a failover their ids may have been
  given to records that were never sent. A failover behind it is logged: purged records may come again.
- A reset touches only rows that still carry an id of this leader's: a fenced one cannot unmark its successor's rows.
- A park moves rows that still carry this leader's id, whole, into the table of parked records.
- Each takes many rows. A purge and the mark after it are one transaction. Each is durable (`synchronous_commit=on`)
  when it returns. The barrier rests on that: the next record of a key may leave only when the one before can never
  come back.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.database import connect, in_statement, rendered, translated
from harvest_lib.native import by_id, rows_of
from harvest_lib.outbox.row_security import guarded, require_all_rows
from harvest_lib.record import KEY, PAGE_BYTES, Row
from harvest_lib.record.rows import ids_of
from harvest_lib.source.by_bytes import RECORD_BYTES
from harvest_lib.source.claim_protocol import ClaimedRows
from harvest_lib.source.readable import readable
from harvest_lib.source.server_identity import timeline

_log = logging.getLogger(__name__)

# The head goes through an array, so that the update walks the primary key whatever the statistics say: as a join it
# turns into a scan of the whole table once they are stale.
_MARK = f"""
WITH head AS MATERIALIZED (
  SELECT id, {RECORD_BYTES.format("o")} AS bytes FROM {{table}} AS o
  WHERE leader_id IS NULL OR leader_id <> %(leader)s ORDER BY id LIMIT %(limit)s FOR UPDATE
)
UPDATE {{table}} SET leader_id = %(leader)s
WHERE id = ANY((
  SELECT CASE WHEN sum(bytes) <= %(bytes)s THEN array_agg(id) ELSE ARRAY(
    SELECT id FROM (SELECT id, bytes, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) FROM head) AS summed
    WHERE sum <= %(bytes)s OR sum = bytes
  ) END FROM head
)::bigint[])
RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, {{any_parked}},
  (SELECT count(*) FROM head)
"""  # noqa: S608 - it is above

_PURGE = "DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])"

_PURGE_MARKED = _PURGE + " AND leader_id IS NOT NULL"

_RESET = "UPDATE {table} SET leader_id = NULL WHERE id = ANY(%(ids)s::bigint[]) AND leader_id = ANY(%(leaders)s)"

_ANY_PARKED = "(SELECT EXISTS (SELECT FROM {parked}))"

# The first of a key in its topic is parked, but where it was held when keys were held whatever the topic.
_PARKED_KEYS = """
SELECT kafka_topic, kafka_key, min(id) FROM {parked} WHERE kafka_key = ANY(%(keys)s) GROUP BY kafka_topic, kafka_key
"""

# A session that parks, retries or drops takes this lock first, so that a key is not released while more is held.
_LOCK_PARKED = "LOCK TABLE {parked} IN SHARE ROW EXCLUSIVE MODE"

# Waits for those who hold the lock above, and they for us; others who mark do not wait.
_KEEP_PARKED = "LOCK TABLE {parked} IN ROW EXCLUSIVE MODE"

# An outbox whose ids begin again (TRUNCATE … RESTART IDENTITY) gives ids of parked records to others, which may have to
# be parked too. Then all of the old record's key get ids below every other, in their order: new ones come after it.
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
  RETURNING o.id, o.kafka_topic, o.kafka_key, refused.reason, to_jsonb(o) || '{{"leader_id": null}}' AS record
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
  RETURNING o.id, o.kafka_topic, o.kafka_key, first.id AS behind, to_jsonb(o) || '{{"leader_id": null}}' AS record
)
INSERT INTO {parked} (id, kafka_topic, kafka_key, reason, held, record)
SELECT id, kafka_topic, kafka_key, 'held behind ' || behind, true, record FROM moved
RETURNING id
"""

_ANY_IS_PARKED, _FOUND = 6, 7
"""Columns behind those of a `Row`: whether anything was parked when the mark began, and how many rows the limit
allowed."""

_LEAST_LIMIT = 10
"""So many rows are checked, and locked for a moment, however large the last ones were."""

_STATEMENT_TIMEOUT_SECONDS = 30

_OWN_IDS = 16
"""So many leader ids are remembered as ours; rows marked under older ones are left to the next leader."""


class MarkSource:
    """`ClaimSource` over one table that a leader marks and purges; both names are quoted ones. Without `parked` nothing
    is ever parked."""

    def __init__(self, conninfo: str, table: sql.Identifier, parked: sql.Identifier | None = None) -> None:
        self._conninfo = conninfo
        self._has_parked = parked is not None
        names = {"table": in_statement(table), "parked": in_statement(parked or table)}
        any_parked = sql.SQL(_ANY_PARKED).format(**names) if parked is not None else sql.SQL("false")
        self._tables = [table] if parked is None else [table, parked]
        self._unguarded_mark = sql.SQL(_MARK).format(any_parked=any_parked, **names)
        self._mark = rendered(self._unguarded_mark)
        self._purge = rendered(sql.SQL(_PURGE).format(**names))
        self._purge_marked = rendered(sql.SQL(_PURGE_MARKED).format(**names))
        self._reset = rendered(sql.SQL(_RESET).format(**names))
        self._any_parked = rendered(sql.SQL("SELECT ") + sql.SQL(_ANY_PARKED).format(parked=parked or table))
        self._keep_parked = sql.SQL(_KEEP_PARKED).format(parked=parked or table)
        self._parked_keys = sql.SQL(_PARKED_KEYS).format(**names)
        self._lock_parked = sql.SQL(_LOCK_PARKED).format(parked=parked or table)
        self._make_room = sql.SQL(_MAKE_ROOM).format(**names)
        self._park = sql.SQL(_PARK).format(**names)
        self._hold = sql.SQL(_HOLD).format(**names)
        self._connection: psycopg.Connection[Any] | None = None
        self._leader_id = UUID(int=0)
        self._own_ids: deque[UUID] = deque(maxlen=_OWN_IDS)
        self._reconnected = False
        self._timeline: str | None = None
        self._careful = False  # something is parked, or was at the last poll
        self._most: int | None = None  # so many rows may be checked: not many times as many as there is room for

    def open(self, leader_id: UUID) -> None:
        self._leader_id = leader_id
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
            with translated():
                # A plan made while the outbox was empty scans the whole table, and would be kept until the next
                # ANALYZE: a mark then took 1.5 s instead of 20 ms with 168,000 rows waiting.
                # From a bitmap rows come in the order of their places, and would have to be sorted one by one.
                self._connection.execute("SET plan_cache_mode = force_custom_plan; SET enable_bitmapscan = off")
                # Behind a lock that is never released we would lead permanently and deliver nothing.
                self._connection.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT_SECONDS}s'")
            # A row that is hidden from us would stay, and later ones of its key would go before it.
            guard = require_all_rows(self._connection, self._tables, ("SELECT", "UPDATE", "DELETE"))
            self._mark = rendered(guarded(self._unguarded_mark, guard))
            self._warn_of_failover(self._connection)
            self._reconnected = True
        self._own_ids.append(leader_id)

    def _warn_of_failover(self, connection: psycopg.Connection[Any]) -> None:
        """Say that another server took over: purges that it never heard of are undone, and their records come again."""
        before, self._timeline = self._timeline, timeline(connection)
        if None not in {before, self._timeline} and before != self._timeline:
            _log.warning("purges_may_be_undone", extra={"timeline": self._timeline, "timeline_before": before})

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        least = min(limit, self._most or limit)
        claimed = self._fetch_carefully(least, delivered) if self._careful else self._fetch(least, delivered)
        if limit:
            self._reconnected = False
            count = len(claimed.rows)
            self._most = max(_LEAST_LIMIT, 2 * count) if claimed.more and count < limit else None
        return claimed

    def _fetch(self, limit: int, delivered: Sequence[int]) -> ClaimedRows:
        """Purge and mark while nothing is parked. If something turns out to be, marked records are given back and
        fetched again with care."""
        connection, marked = self._connected(), None
        with translated():
            if delivered and limit:
                with connection.pipeline():  # both in one transaction, by one round trip
                    self._execute_purge(delivered)
                    marked = self._execute_mark(limit)
            elif delivered:
                self._execute_purge(delivered)
            elif limit:
                marked = self._execute_mark(limit)
            if marked is None or (first := marked.fetchone()) is None:
                return ClaimedRows([], {})
            rows = rows_of(marked)
            # Parked before the mark, or after it began, by a leader fenced meanwhile: these rows it can park no more.
            if self._has_parked and (first[_ANY_IS_PARKED] or self._is_any_parked()):
                self._careful = True
                self.reset(ids_of(rows))
                return self._fetch_carefully(limit, ())
        return self._claimed(rows, {}, first, limit)

    def _fetch_carefully(self, limit: int, delivered: Sequence[int]) -> ClaimedRows:
        """Purge, mark and read which keys are held while nobody can release one: its records would come back behind
        those that were marked."""
        connection = self._connected()
        with translated(), connection.transaction():
            connection.execute(self._keep_parked)
            if delivered:
                self._execute_purge(delivered)
            marked = self._execute_mark(limit) if limit else None
            first = marked.fetchone() if marked is not None else None
            rows = rows_of(marked) if marked is not None else []
            parked = self._read_parked({row[KEY] for row in rows}) if rows else {}
            self._careful = self._is_any_parked()
        return self._claimed(rows, parked, first, limit) if first is not None else ClaimedRows([], {})

    def _claimed(
        self, rows: Sequence[Row], parked: Mapping[tuple[str, str], int], first: tuple[Any, ...], limit: int
    ) -> ClaimedRows:
        """Return rows in order; `first` of them, whole, says whether the limit, or the bytes, kept others out."""
        is_more = not len(rows) == first[_FOUND] < limit
        return ClaimedRows(readable(by_id(rows), self._connected()), parked, is_more)

    def _execute_purge(self, ids: Sequence[int]) -> None:
        # Behind a new connection there may be another server, that lost our rows and gave their ids to new ones. Else a
        # row without a mark is one that a fenced leader of another kind has unmarked: it was delivered all the same.
        purge = self._purge_marked if self._reconnected else self._purge
        self._connected().execute(purge, {"ids": _array(ids)}, prepare=True)

    def _execute_mark(self, limit: int) -> psycopg.Cursor[Any]:
        values = {"leader": self._leader_id, "limit": limit, "bytes": PAGE_BYTES}
        return self._connected().cursor(binary=True).execute(self._mark, values, prepare=True)

    def _is_any_parked(self) -> bool:
        return self._connected().execute(self._any_parked, prepare=True).fetchone() == (True,)

    def _read_parked(self, keys: set[str]) -> dict[tuple[str, str], int]:
        found = self._connected().execute(self._parked_keys, {"keys": list(keys)}).fetchall()
        return {(topic, key): first for topic, key, first in found}

    def reset(self, ids: Sequence[int]) -> None:
        values = {"ids": _array(ids), "leaders": list(self._own_ids)}
        with translated():
            self._connected().execute(self._reset, values, prepare=True)

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        connection, values = self._connected(), {"ids": _array([*refused, *behind]), "leader": self._leader_id}
        with translated():
            try:
                held = self._move(connection, refused, behind)
            except psycopg.errors.UniqueViolation:  # records that were parked before have these ids
                with connection.transaction():
                    connection.execute(self._lock_parked)
                    connection.execute(self._make_room, values)
                    held = self._move(connection, refused, behind)
        return frozenset(behind) - {record_id for (record_id,) in held}

    def _move(
        self, connection: psycopg.Connection[Any], refused: Mapping[int, str], behind: Sequence[int]
    ) -> Sequence[tuple[int]]:
        """Move records into the table of parked ones, and return the ids of those of `behind` that were."""
        with connection.transaction():
            connection.execute(self._lock_parked)
            if refused:
                reasons = list(refused.values())
                values = {"ids": _array(refused), "reasons": reasons, "leader": self._leader_id}
                connection.execute(self._park, values)
            if not behind:
                return []
            values = {"ids": _array(behind), "leader": self._leader_id}
            return connection.execute(self._hold, values).fetchall()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            with translated():
                raise psycopg.OperationalError("not connected")
        return self._connection


def _array(ids: Iterable[int]) -> str:
    """Spell an array for Postgres: psycopg's own way costs a microsecond a number, a tenth of a record's."""
    return f"{{{','.join(map(str, ids))}}}"
