"""Base class of the sources that only read. It keeps the connection, and checks the connection's server."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

import psycopg

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.row_security import require_all_rows
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from harvest_lib.record import PAGE_BYTES, Row
from harvest_lib.record.checkpoint import Position
from harvest_lib.source import server_identity
from harvest_lib.source.batch_protocol import Page
from harvest_lib.source.by_bytes import take_next, within
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot
from harvest_lib.source.prefetch import Prefetcher
from harvest_lib.source.readable import readable
from harvest_lib.source.selection import FilterLookup, Selection, SubscriptionFilter

# Statements walk the indexes in index order, because the statistics of a table that grows at its end are never right,
# and a page that sorts or uses a bitmap reads the whole rest of its window. The statement timeout is long for two
# reasons: finding the beginning of a window takes a second for a million records (windows of a hundred million occur),
# and a selective filter may skip many records before the next match.
_SETTINGS = {
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"), "off"),
    "lock_timeout": "30s",
    "statement_timeout": "10min",
}

_NOW = "SELECT pg_current_snapshot()::text, pg_is_in_recovery()"

# Transaction ids at or above the current xmax occur only in a table that came from another cluster.
_FOREIGN = """
SELECT {transaction_id}::text, pg_snapshot_xmax(pg_current_snapshot())::text FROM {table}
WHERE {transaction_id} >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1
"""


_SOME = within("""
SELECT found.* FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS deferred (number, place)
JOIN (SELECT {columns} FROM {table} WHERE {id} = ANY (%(ids)s::bigint[])) AS found ON found.id = deferred.number
ORDER BY deferred.place
""")

_MANY_TRANSACTIONS = 1_000
_LONG_POLL_SECONDS = 0.02
_BETWEEN_ADVANCES_SECONDS = 1.0
_LONG_SINCE_SECONDS = 5.0
_OWN_TRANSACTIONS = 3
"""Saving a position itself uses two or three transaction ids; so few new ids are no reason to save a position again."""


class Plans(StrEnum):
    """Whether a prepared statement reuses its plan: the values of Postgres' `plan_cache_mode`.

    KEPT reuses the plan. It is used for polls at the head of the table, which all run the same statement: with a
    handful of segments, planning takes three times as long as execution. FRESH plans each time. It is used for pages,
    because a plan made at the head of the table is wrong deeper in the table.
    """

    KEPT = "force_generic_plan"
    FRESH = "force_custom_plan"


class ConnectedSource(ABC):
    """A `BatchSource` on a single connection. A new subscription starts at the snapshot `start`; with None, it starts
    with transactions that commit after `open`. `filter_lookup` narrows `selection` on each new connection; without
    `filter_lookup`, the source reads all records of `selection`."""

    def __init__(
        self,
        conninfo: str,
        selection: Selection,
        *,
        subscription: str = "default",
        start: Snapshot | None = NOTHING,
        filter_lookup: FilterLookup | None = None,
    ) -> None:
        self._conninfo = conninfo
        self._selected = selection
        self._filter = SubscriptionFilter(selection=selection)
        self._filter_lookup = filter_lookup
        self._subscription = subscription
        self._start = start
        self._connection: psycopg.Connection[Any] | None = None
        self._prefetcher: Prefetcher | None = None
        self._place: server_identity.ServerPlace | None = None
        self._plans: Plans | None = None
        self._deferred: list[int] = []
        self._advanced_at = boot_seconds()
        self._fill()

    @abstractmethod
    def _prepare(self) -> None:
        """Compose the SQL statements of the source for the current filter."""

    @abstractmethod
    def open(self, position: Position | None) -> Position:
        """See `BatchSource`."""

    @abstractmethod
    def read(self, limit: int) -> Page | None:
        """See `BatchSource`."""

    def load(self, ids: Sequence[int]) -> list[Row]:
        """See `BatchSource`."""
        with translated():
            values = {"ids": list(ids), "bytes": PAGE_BYTES}
            rows: list[Row] = self._connected().cursor(binary=True).execute(self._some, values).fetchall()
        take_next(rows)
        return readable(rows, self._connected())

    def sent(self, rows: Sequence[Row]) -> None:  # noqa: ARG002 - nothing is purged
        """See `BatchSource`."""
        return

    def give_back(self) -> None:
        """See `BatchSource`. Does nothing: this source marks no rows that it could release."""
        return

    def committed(self, failed: Collection[int] = ()) -> None:  # noqa: ARG002 - as above
        """See `BatchSource`. Does nothing: this source purges no rows."""
        return

    def close(self) -> None:
        """See `BatchSource`."""
        connection, self._connection = self._connection, None
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            prefetcher.close()
        if connection is not None:
            connection.close()

    def _defer(self, position: Position | None) -> None:
        """Remember the deferred ids of a position: records before the position that were not delivered."""
        self._deferred = list(position.get("deferred", ())) if position else []

    def _read_deferred(self, position: Position, limit: int) -> Page:
        """Return up to `limit` deferred records, in the order in which they were deferred. The position of the page
        lists the deferred ids that remain."""
        asked = self._deferred[:limit]
        rows = self.load(asked)
        self._deferred = self._deferred[asked.index(rows[-1][0]) + 1 if rows else len(asked) :]
        left = {"deferred": list(self._deferred)} if self._deferred else {}
        return Page(rows, {**position, **left}, more=True)

    def _reconnect(self, position: Position | None) -> psycopg.Connection[Any]:
        """Return the connection, after connecting if needed. Check a new connection's server: it must have all records
        before `position`."""
        if self._connection is None or self._connection.closed:
            self.close()
            self._place = None
            self._connection = self._connect()
            lookup = self._filter_lookup
            found = lookup(self._connection, self._selected) if lookup else SubscriptionFilter(selection=self._selected)
            # The filter lookup has read its table; from here on this connection reads the outbox alone.
            guard = require_all_rows(self._connection, [self._selected.table])
            found = replace(found, selection=replace(found.selection, guard=guard))
            if found != self._filter:
                self._filter = found
                self._fill()
            self._prefetcher = Prefetcher(self._connection)
        if self._place is None:
            before = cast("Mapping[str, str] | None", position and position.get("server"))
            server_identity.require_primary(self._connection)
            place = (
                server_identity.check(self._connection, before, self._subscription)
                if before
                else server_identity.place(self._connection)
            )
            self._refuse_foreign(self._connection)
            self._place = place  # checked once for each connection
        return self._connection

    def _fill(self) -> None:
        self._foreign, self._some = (self._filter.selection.fill(each) for each in (_FOREIGN, _SOME))
        self._prepare()

    def _connect(self) -> psycopg.Connection[Any]:
        connection = connect(self._conninfo, _SETTINGS)
        self._plans = None
        return connection

    def _plan(self, plans: Plans) -> None:
        """Set the plan mode of all later statements. No other statement may be running on the connection."""
        if plans is not self._plans:
            self._connected().execute(f"SET plan_cache_mode = {plans}")
            self._plans = plans

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            with translated():
                raise psycopg.OperationalError("not connected")
        return self._connection

    def _now(self, connection: psycopg.Connection[Any]) -> Snapshot:
        with translated():
            (row,) = connection.execute(_NOW)
        if row[1]:
            raise server_identity.standby()
        return Snapshot.parse(row[0])

    def _barrier(self, connection: psycopg.Connection[Any], flushed_up_to: str | None = None) -> None:
        """Flush the WAL, so that all rows visible so far are on disk, and store the LSN reached. If the server has
        already reported the LSN up to which the WAL is flushed, pass it as `flushed_up_to`: it is then only stored."""
        assert self._place is not None  # noqa: S101 - set with the connection
        lsn = flushed_up_to or server_identity.barrier(connection)
        self._place = replace(self._place, lsn=lsn)

    def _should_advance(self, transactions: int, began: float) -> bool:
        """Return True if the position should be saved after a poll that found no records. Saving costs a barrier and a
        checkpoint.

        Until the position is saved, every poll rereads the records that the filter leaves out, and retention cannot
        remove these records.
        """
        if not self._filter.selection.conditions or transactions <= _OWN_TRANSACTIONS:
            return False
        now = boot_seconds()
        is_long_since = now >= self._advanced_at + _LONG_SINCE_SECONDS
        if transactions < _MANY_TRANSACTIONS and now - began < _LONG_POLL_SECONDS and not is_long_since:
            return False
        if now < self._advanced_at + _BETWEEN_ADVANCES_SECONDS:
            return False
        self._advanced_at = now
        return True

    def _place_json(self) -> Mapping[str, str]:
        return self._place.as_json() if self._place is not None else {}

    def _refuse_foreign(self, connection: psycopg.Connection[Any]) -> None:
        with translated():
            row = connection.execute(self._foreign, {}).fetchone()
        if row is not None:
            raise OutboxTableError(
                "the table holds records of another cluster's transactions: it was restored or replicated",
                evidence=f"transaction_id {row[0]}, the server has reached {row[1]}",
                next_step="harvest subscriptions move; or, to begin its subscriptions again, harvest migrate --restamp",
            )
