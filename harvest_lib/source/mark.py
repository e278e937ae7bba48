"""The mark source: mark, purge and reset on goharvest's table.

Promises
- A mark takes the head of the table, by id, that this leader id has not taken: rows that are new, that failed and were
  reset, or that another leader left behind, all by one statement. Rows come back sorted: RETURNING is not.
- A purge deletes by id, regardless of the mark's holder: Kafka has confirmed these records to the caller, and a row
  that a fenced leader marked in between would otherwise be sent a second time, out of order.
- A purge that follows a new connection spares rows that nobody has marked: after a failover or a restore their ids may
  have been given to records that were never sent. Where rows have no place, no position vouches for the server, and
  the purge spares rows under marks of others as well. A failover is logged: purged records may come again.
- A reset touches only rows that still carry an id of this leader's: a fenced one cannot unmark its successor's rows.
- Each takes many rows. A purge and the mark after it are one transaction. Each is durable (`synchronous_commit=on`)
  when it returns. The barrier rests on that: the next record of a key may leave only when the one before can never
  come back.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.database import connect, in_statement, rendered, translated
from harvest_lib.native import by_id, rows_of
from harvest_lib.outbox.row_security import guarded, require_all_rows
from harvest_lib.record import KEY, PAGE_BYTES, Row
from harvest_lib.record.rows import ids_of
from harvest_lib.source import server_identity
from harvest_lib.source.by_bytes import RECORD_BYTES
from harvest_lib.source.claim_protocol import ClaimedRows
from harvest_lib.source.parking_moves import ParkingMoves, array_of
from harvest_lib.source.readable import readable

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
  (SELECT count(*) FROM head){{lsn}}
"""  # noqa: S608 - it is above

# After the statement's snapshot was taken: what that sees was committed before.
_LSN = ", (SELECT pg_current_wal_insert_lsn()::text)"

_PURGE = "DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])"

_PURGE_MARKED = _PURGE + " AND leader_id IS NOT NULL"

_PURGE_OWN = _PURGE + " AND leader_id = ANY(%(leaders)s)"

_RESET = "UPDATE {table} SET leader_id = NULL WHERE id = ANY(%(ids)s::bigint[]) AND leader_id = ANY(%(leaders)s)"

_ANY_IS_PARKED, _FOUND, _UP_TO = 6, 7, 8
"""Columns behind those of a `Row`: whether anything was parked when the mark began, how many rows the limit allowed,
and, if places are named, the LSN before which all of them were committed."""

_LEAST_LIMIT = 10
"""So many rows are checked, and locked for a moment, however large the last ones were."""

_SETTINGS = {
    # A plan made while the outbox was empty scans the whole table, and would be kept until the next ANALYZE: a mark
    # then took 1.5 s instead of 20 ms with 168,000 rows waiting.
    "plan_cache_mode": "force_custom_plan",
    # From a bitmap rows come in the order of their places, and would have to be sorted one by one.
    "enable_bitmapscan": "off",
    # Behind a lock that is never released we would lead permanently and deliver nothing.
    "statement_timeout": "30s",
}

_OWN_IDS = 16
"""So many leader ids are remembered as ours; rows marked under older ones are marked again, or left to the next
leader."""


class MarkSource:
    """`ClaimSource` over one table that a leader marks and purges; both names are quoted ones. Without `parked` nothing
    is ever parked."""

    def __init__(
        self,
        conninfo: str,
        table: sql.Identifier,
        parked: sql.Identifier | None = None,
        *,
        names_places: bool = False,
    ) -> None:
        """`names_places`: rows come with their place in the server's log, and a position that names one was compared
        with the server before its ids are purged."""
        self._names_places = names_places
        self._place: server_identity.ServerPlace | None = None
        self._conninfo = conninfo
        self._parking = ParkingMoves(table, parked) if parked is not None else None
        any_parked = self._parking.any_parked if self._parking is not None else sql.SQL("false")
        self._tables = [table] if parked is None else [table, parked]
        names = {"table": in_statement(table)}
        lsn = sql.SQL(_LSN if names_places else "")
        self._unguarded_mark = sql.SQL(_MARK).format(any_parked=any_parked, lsn=lsn, **names)
        self._mark = rendered(self._unguarded_mark)
        again = _PURGE_MARKED if names_places else _PURGE_OWN
        self._purge, self._purge_again, self._reset = (
            rendered(sql.SQL(each).format(**names)) for each in (_PURGE, again, _RESET)
        )
        self._connection: psycopg.Connection[Any] | None = None
        self._leader_id = UUID(int=0)
        self._own_ids: deque[UUID] = deque(maxlen=_OWN_IDS)
        self._reconnected = False
        self._timeline: str | None = None
        self._is_any_parked = False  # or was at the last poll
        self._most: int | None = None  # so many rows may be checked: not many times as many as there is room for

    def open(self, leader_id: UUID) -> None:
        self._leader_id = leader_id
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo, _SETTINGS)
            # A row that is hidden from us would stay, and later ones of its key would go before it.
            guard = require_all_rows(self._connection, self._tables, ("SELECT", "UPDATE", "DELETE"))
            self._mark = rendered(guarded(self._unguarded_mark, guard))
            self._warn_of_failover(self._connection)
            if self._names_places:
                server_identity.require_primary(self._connection)
                self._place = server_identity.place(self._connection)
            self._reconnected = True
        self._own_ids.append(leader_id)

    def _warn_of_failover(self, connection: psycopg.Connection[Any]) -> None:
        """Say that another server took over: purges that it never heard of are undone, and their records come again."""
        before, self._timeline = self._timeline, server_identity.timeline(connection)
        if None not in {before, self._timeline} and before != self._timeline:
            _log.warning("purges_may_be_undone", extra={"timeline": self._timeline, "timeline_before": before})

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        least, parking = min(limit, self._most or limit), self._parking
        if parking is not None and self._is_any_parked:
            claimed = self._fetch_carefully(parking, least, delivered)
        else:
            claimed = self._fetch(least, delivered)
        if limit:
            self._reconnected = False
            count = len(claimed.rows)
            self._most = max(_LEAST_LIMIT, 2 * count) if claimed.more and count < limit else None
        return claimed

    def _fetch(self, limit: int, delivered: Sequence[int]) -> ClaimedRows:
        """Purge and mark while nothing is parked. If something turns out to be, marked records are given back and
        fetched again with care."""
        connection, marked, parking = self._connected(), None, self._parking
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
            if parking is not None and (first[_ANY_IS_PARKED] or parking.is_any(connection)):
                self._is_any_parked = True
                self.reset(ids_of(rows))
                return self._fetch_carefully(parking, limit, ())
        return self._claimed(rows, {}, first, limit)

    def _fetch_carefully(self, parking: ParkingMoves, limit: int, delivered: Sequence[int]) -> ClaimedRows:
        """Purge, mark and read which keys are held while nobody can release one: its records would come back behind
        those that were marked."""
        connection = self._connected()
        with translated(), connection.transaction():
            parking.keep(connection)
            if delivered:
                self._execute_purge(delivered)
            marked = self._execute_mark(limit) if limit else None
            first = marked.fetchone() if marked is not None else None
            rows = rows_of(marked) if marked is not None else []
            parked = parking.first_of_keys(connection, {row[KEY] for row in rows}) if rows else {}
            self._is_any_parked = parking.is_any(connection)
        return self._claimed(rows, parked, first, limit) if first is not None else ClaimedRows([], {})

    def _claimed(
        self, rows: Sequence[Row], parked: Mapping[tuple[str, str], int], first: tuple[Any, ...], limit: int
    ) -> ClaimedRows:
        """Return rows in order; `first` of them, whole, says whether the limit, or the bytes, kept others out."""
        is_more = not len(rows) == first[_FOUND] < limit
        server = replace(self._place, lsn=first[_UP_TO]).as_json() if self._place is not None else {}
        return ClaimedRows(readable(by_id(rows), self._connected()), parked, is_more, server)

    def _execute_purge(self, ids: Sequence[int]) -> None:
        # Behind a new connection there may be another server, that lost our rows and gave their ids to new ones. Else a
        # row without a mark is one that a fenced leader of another kind has unmarked: it was delivered all the same.
        purge = self._purge_again if self._reconnected else self._purge
        self._connected().execute(purge, self._ids(ids), prepare=True)

    def _execute_mark(self, limit: int) -> psycopg.Cursor[Any]:
        values = {"leader": self._leader_id, "limit": limit, "bytes": PAGE_BYTES}
        return self._connected().cursor(binary=True).execute(self._mark, values, prepare=True)

    def reset(self, ids: Sequence[int]) -> None:
        with translated():
            self._connected().execute(self._reset, self._ids(ids), prepare=True)

    def _ids(self, ids: Sequence[int]) -> Mapping[str, object]:
        """Return the values of a statement that may touch only what this source has marked."""
        return {"ids": array_of(ids), "leaders": list(self._own_ids)}

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        assert self._parking is not None  # noqa: S101 - the policy is to stop, and not to park
        with translated():
            return self._parking.move(self._connected(), self._leader_id, refused, behind)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            with translated():
                raise psycopg.OperationalError("not connected")
        return self._connection
