"""The mark source: it marks, purges and resets rows of goharvest's table.

Promises
- A mark claims rows that are not marked with this leader id, the lowest ids first: new rows, rows that failed and were
  reset, and rows that another leader left marked. It is a single statement. The source sorts the rows, since RETURNING
  has no order.
- A purge deletes rows by id, whichever leader has marked them, because Kafka has confirmed their records. If the purge
  spared a row that a fenced leader marked in between, the row would be sent a second time, out of order.
- The first purge on a new connection spares unmarked rows, because after a failover or a restore their ids may belong
  to records that were never sent. If positions have no WAL location, nothing proves that the server is the same. In
  this case, the first purge also spares rows that other leaders have marked. A failover is logged, since purged records
  may then be delivered twice.
- A reset changes only rows that are marked with an id of this leader, so a fenced leader cannot unmark the rows of its
  successor.
- Mark, purge and reset handle many rows at once. A purge and the mark after it share a transaction. Each statement is
  durable (`synchronous_commit=on`) when it returns. The order of a key depends on that: the next record of a key is
  sent only after the purge of its predecessor can no longer be lost.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.native import by_id, rows_of
from harvest_lib.outbox.parking.leader_records import ParkingMoves, array_of
from harvest_lib.outbox.record_pages import RECORD_BYTES
from harvest_lib.outbox.row_security import guarded, require_all_rows
from harvest_lib.postgres.database import connect, in_statement, rendered
from harvest_lib.postgres.translation import translated
from harvest_lib.record import KEY, PAGE_BYTES, Row
from harvest_lib.record.rows import ids_of
from harvest_lib.source import server_identity
from harvest_lib.source.claim_protocol import ClaimedRows
from harvest_lib.source.readable import readable

_log = logging.getLogger(__name__)

# The ids of `head` become an array, so that the update uses the primary key: with stale statistics, a join would scan
# the whole table.
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
"""  # noqa: S608 - a constant of this package

# The LSN is read after the statement's snapshot was taken, so all rows in the snapshot were committed before it.
_LSN = ", (SELECT pg_current_wal_insert_lsn()::text)"

_PURGE = "DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])"

_PURGE_MARKED = _PURGE + " AND leader_id IS NOT NULL"

_PURGE_OWN = _PURGE + " AND leader_id = ANY(%(leaders)s)"

_RESET = "UPDATE {table} SET leader_id = NULL WHERE id = ANY(%(ids)s::bigint[]) AND leader_id = ANY(%(leaders)s)"

_ANY_IS_PARKED, _FOUND, _UP_TO = 6, 7, 8
"""Indexes of the result columns that follow the columns of a `Row`: whether any record was parked when the mark began;
the number of rows found within the limit of rows; and, with `names_places`, an LSN after the commits of all rows."""

_LEAST_LIMIT = 10
"""The limit of rows of a mark is never reduced below this number, however large the rows of the last mark were."""

_SETTINGS = {
    # A plan made while the outbox was empty scans the whole table, and Postgres would reuse it until the next ANALYZE:
    # with 168,000 rows waiting, such a mark took 1.5 s instead of 20 ms.
    "plan_cache_mode": "force_custom_plan",
    # A bitmap scan returns rows in physical order, which needs a sort.
    "enable_bitmapscan": "off",
    # Without a timeout, a leader blocked by a lock that is never released would stay leader and deliver nothing.
    "statement_timeout": "30s",
}

_OWN_IDS = 16
"""Number of recent leader ids that a reset or a purge treats as ids of this leader. Rows marked with older ids are
marked again, or remain for the next leader."""


class MarkSource:
    """`ClaimSource` over the outbox `table`, whose rows a leader marks and purges. `parked` is the table of parked
    records. If it is None, no record is ever parked."""

    def __init__(
        self,
        conninfo: str,
        table: sql.Identifier,
        parked: sql.Identifier | None = None,
        *,
        names_places: bool = False,
    ) -> None:
        """With `names_places`, each fetch also returns a WAL location. The caller then compares a position's WAL
        location with the server before it purges the ids in the position."""
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
        self._is_any_parked = False  # True if any record was parked at the last poll
        self._most: int | None = None  # limit of rows to check: a small multiple of the rows that fit into a page

    def open(self, leader_id: UUID) -> None:
        self._leader_id = leader_id
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo, _SETTINGS)
            # A row hidden by row security would remain in the table, and later records of its key would overtake it.
            guard = require_all_rows(self._connection, self._tables, ("SELECT", "UPDATE", "DELETE"))
            self._mark = rendered(guarded(self._unguarded_mark, guard))
            self._warn_of_failover(self._connection)
            if self._names_places:
                server_identity.require_primary(self._connection)
                self._place = server_identity.place(self._connection)
            self._reconnected = True
        self._own_ids.append(leader_id)

    def _warn_of_failover(self, connection: psycopg.Connection[Any]) -> None:
        """Log a warning if the timeline has changed: another server was promoted. Purges that the new server has not
        received are undone, and their records are delivered again."""
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
        """Purge and mark, assuming that no record is parked. If a record was parked in the meantime, reset the marked
        rows and fetch them again, with `_fetch_carefully`."""
        connection, marked, parking = self._connected(), None, self._parking
        with translated():
            if delivered and limit:
                with connection.pipeline():  # a single transaction and a single round trip
                    self._execute_purge(delivered)
                    marked = self._execute_mark(limit)
            elif delivered:
                self._execute_purge(delivered)
            elif limit:
                marked = self._execute_mark(limit)
            if marked is None or (first := marked.fetchone()) is None:
                return ClaimedRows([], {})
            rows = rows_of(marked)
            # The second check finds records that another leader parked after the mark began. That leader is fenced
            # now, and cannot park the rows marked here.
            if parking is not None and (first[_ANY_IS_PARKED] or parking.is_any(connection)):
                self._is_any_parked = True
                self.reset(ids_of(rows))
                return self._fetch_carefully(parking, limit, ())
        return self._claimed(rows, {}, first, limit)

    def _fetch_carefully(self, parking: ParkingMoves, limit: int, delivered: Sequence[int]) -> ClaimedRows:
        """Purge, mark, and read the keys with parked records, under a lock that prevents releases. Without the lock,
        records of a key could be put back after later records of the key were marked."""
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
        """Return the result of a fetch, its rows sorted by id. `first` is the first row with all result columns: its
        counts show whether the limit of rows or of bytes left out further rows."""
        is_more = not len(rows) == first[_FOUND] < limit
        server = replace(self._place, lsn=first[_UP_TO]).as_json() if self._place is not None else {}
        return ClaimedRows(readable(by_id(rows), self._connected()), parked, is_more, server)

    def _execute_purge(self, ids: Sequence[int]) -> None:
        # A new connection may lead to another server, which may have lost the rows and given their ids to new rows. On
        # the same server, an unmarked row with one of these ids was delivered, and a fenced goharvest has unmarked it.
        purge = self._purge_again if self._reconnected else self._purge
        self._connected().execute(purge, self._ids(ids), prepare=True)

    def _execute_mark(self, limit: int) -> psycopg.Cursor[Any]:
        values = {"leader": self._leader_id, "limit": limit, "bytes": PAGE_BYTES}
        return self._connected().cursor(binary=True).execute(self._mark, values, prepare=True)

    def reset(self, ids: Sequence[int]) -> None:
        with translated():
            self._connected().execute(self._reset, self._ids(ids), prepare=True)

    def _ids(self, ids: Sequence[int]) -> Mapping[str, object]:
        """Return the parameters of a purge or a reset: the ids of the rows, and the recent leader ids of this
        source."""
        return {"ids": array_of(ids), "leaders": list(self._own_ids)}

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        assert self._parking is not None  # noqa: S101 - without `parked` the policy stops at a refused record
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
