"""Common parts of the sources that only read: the connection, and the checks of the server behind it."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

import psycopg

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.row_security import require_all_rows
from harvest_lib.postgres.database import connect, translated
from harvest_lib.record import PAGE_BYTES, Row
from harvest_lib.record.checkpoint import Position
from harvest_lib.source import server_identity
from harvest_lib.source.batch_protocol import Page
from harvest_lib.source.by_bytes import take_next, within
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot
from harvest_lib.source.prefetch import Prefetcher
from harvest_lib.source.readable import readable
from harvest_lib.source.selection import FilterLookup, Selection, SubscriptionFilter

# By the indexes, in their order: the statistics of a table that grows at its end are never right, and a page by sort or
# bitmap reads the rest of its window each time. Two steps may take long: to find the beginning of a window of a hundred
# million records, a second for a million, and to find the next record that a selective filter lets through.
_SETTINGS = {
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"), "off"),
    "lock_timeout": "30s",
    "statement_timeout": "10min",
}

_NOW = "SELECT pg_current_snapshot()::text, pg_is_in_recovery()"

# Only a table from another cluster has transaction ids above the present xmax.
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
"""Saving a position uses two or three transaction ids itself; they are no reason to save again."""


class Plans(StrEnum):
    """Origin of a prepared statement's plan.

    KEPT is for the poll of the head of the table, which is always the same: over a handful of segments its planning
    takes three times as long as its execution. FRESH is for pages: a plan kept from the head of the table is wrong
    deeper in the table.
    """

    KEPT = "force_generic_plan"
    FRESH = "force_custom_plan"


class ConnectedSource(ABC):
    """A `BatchSource` on a single connection. A new subscription starts at the snapshot `start`; None starts it with
    transactions that commit from now on. `filter_lookup` narrows `selection` on each new connection; by default all of
    `selection` is read."""

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
        """Make the statements for the filter."""

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
        """See `BatchSource`. Reading takes nothing."""
        return

    def committed(self, failed: Collection[int] = ()) -> None:  # noqa: ARG002 - as above
        """See `BatchSource`. Reading changes no row, so there is nothing to do."""
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
        """Keep the ids of records that a position has passed and that were not delivered."""
        self._deferred = list(position.get("deferred", ())) if position else []

    def _read_deferred(self, position: Position, limit: int) -> Page:
        """Return deferred records, in the order in which they were deferred, up to `limit`; the position names the
        rest."""
        asked = self._deferred[:limit]
        rows = self.load(asked)
        self._deferred = self._deferred[asked.index(rows[-1][0]) + 1 if rows else len(asked) :]
        left = {"deferred": list(self._deferred)} if self._deferred else {}
        return Page(rows, {**position, **left}, more=True)

    def _reconnect(self, position: Position | None) -> psycopg.Connection[Any]:
        """Return the connection; a new one is checked against the place that the position came from."""
        if self._connection is None or self._connection.closed:
            self.close()
            self._place = None
            self._connection = self._connect()
            lookup = self._filter_lookup
            found = lookup(self._connection, self._selected) if lookup else SubscriptionFilter(selection=self._selected)
            # From here on this connection reads nothing but the outbox.
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
        """Plan the following statements in this way. No statement may be on its way."""
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
        """Flush the WAL up to everything visible so far, and record its LSN. With `flushed_up_to`, the server has
        reported that the WAL is flushed up to this LSN."""
        assert self._place is not None  # noqa: S101 - set with the connection
        lsn = flushed_up_to or server_identity.barrier(connection)
        self._place = replace(self._place, lsn=lsn)

    def _should_advance(self, transactions: int, began: float) -> bool:
        """Return True if the position of a poll that found nothing should be saved, at the price of a barrier and a
        checkpoint.

        Until then every poll reads the records that a filter leaves out, and they are retained.
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
