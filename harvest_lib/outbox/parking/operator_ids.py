"""Operators' commands for the parked records of a subscription that reads in batches: list, retry and drop.

The records stay in the outbox; the table `<outbox>_parked_ids` lists their ids. The commands only change this table.
The leader acts on a change within about a second. If there is no leader, the next leader acts on it at its start.

Promises
- Each change is a single statement or transaction. Harvesters keep working during it.
- Keys stay in order: a retried record waits as long as an earlier record of its key is parked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, ParkedRecordMissing
from harvest_lib.outbox.parking import parked_queries as queries
from harvest_lib.outbox.parking.operator_records import ParkedTable, planned_retry, shown_ids
from harvest_lib.outbox.parking.parked_record import Dropped, ParkedSelection, Retried
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated


@dataclass(frozen=True)
class ParkedIdTable(ParkedTable):
    """The records that a subscription has parked. `id_column` and `transaction_id_column` are SQL expressions for the
    id of an outbox row and for the transaction that wrote it."""

    outbox: OutboxTable
    subscription: str = "default"
    id_column: sql.Composable = field(default_factory=lambda: sql.Identifier("id"))
    transaction_id_column: sql.Composable = field(default_factory=lambda: sql.Identifier("transaction_id"))

    _name: ClassVar = "parked_ids"
    _count: ClassVar = queries.COUNT_LISTED
    _summary: ClassVar = queries.SUMMARY_LISTED
    _list: ClassVar = queries.LIST_LISTED
    _show: ClassVar = queries.SHOW_LISTED
    _touch: ClassVar = queries.TOUCHED_LISTED

    # -- resolving

    def retry(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection, *, keep_order: bool = True
    ) -> Retried:
        """Request that the selected records are sent again, with the records held behind them.

        A selected record waits as long as an earlier record of its key is parked, unless `keep_order` is false, which
        suits the policy `skip`. A selection by topic or key, or of all records, leaves out entries whose row no longer
        exists. If a selected id is not parked, or its row no longer exists, changes nothing and raises
        ParkedRecordMissing.
        """
        with translated(), connection.transaction():
            if selection.ids is not None and (gone := self._gone(connection, selection)):
                raise self._rows_missing(gone)
            touched = self._touched(connection, selection, parked_only=False, retried_stays=False)
            asked = [each.id for each in touched if each.selected]
            self._change(connection, queries.RETRY_LISTED, asked)
        return planned_retry(touched, keep_order=keep_order)[2]

    def drop(self, connection: psycopg.Connection[Any], selection: ParkedSelection) -> Dropped:
        """Drop parked records and release the records held behind them. A dropped record is never sent to this
        subscription.

        A selection by topic or key, or of all records, drops parked records only; a held record is dropped only by its
        id. Entries whose row no longer exists are dropped too, since they hold no other record. If a selected id is not
        parked, changes nothing and raises ParkedRecordMissing.
        """
        with translated(), connection.transaction():
            without_row = self._gone(connection, selection)
            if selection.ids is not None:
                selection = replace(selection, ids=[each for each in selection.ids if each not in without_row])
            touched = self._touched(connection, selection, parked_only=selection.ids is None, retried_stays=True)
            gone = [*without_row, *(each.id for each in touched if each.selected)]
            released = [each.id for each in touched if not each.selected and each.behind is None]
            self._change(connection, queries.DROP_LISTED, gone)
            self._change(connection, queries.RETRY_LISTED, released)
        return Dropped(dropped=len(gone), released=len(released))

    def _gone(self, connection: psycopg.Connection[Any], selection: ParkedSelection) -> Sequence[int]:
        statement = self._statement(connection, queries.GONE_LISTED)
        return [record_id for (record_id,) in connection.execute(statement, self._values(selection)).fetchall()]

    def _change(self, connection: psycopg.Connection[Any], query: str, ids: Sequence[int]) -> None:
        connection.execute(self._statement(connection, query), {"subscription": self.subscription, "ids": [*ids]})

    def _values(self, selection: ParkedSelection) -> dict[str, object]:
        return {"subscription": self.subscription, **super()._values(selection)}

    def _sees_rows(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if this role may read all rows of the outbox. For any other role, a row that a query does not
        find may still exist."""
        name = self.outbox.identifier
        readable = connection.execute(queries.READABLE, (name.as_string(connection),)).fetchone()
        try:
            check_all_rows(connection, [name])
        except DatabaseAccessDenied:
            return False
        return readable == (True,)

    def _statement(self, connection: psycopg.Connection[Any], query: str) -> sql.Composed:
        names: dict[str, sql.Composable] = {
            "parked_ids": in_statement(self.table.identifier),
            "outbox": in_statement(self.outbox.identifier),
            "id": in_statement(self.id_column),
            "transaction_id": in_statement(self.transaction_id_column),
        }
        asks_rows = "{matches}" in query and self._sees_rows(connection)
        matches = sql.SQL(queries.MATCHES if asks_rows else "true").format(**names)
        return sql.SQL(query).format(parked=sql.Identifier("parked"), matches=matches, **names)

    def _rows_missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        return ParkedRecordMissing(
            f"parked records are no longer in the outbox: {shown_ids(ids)}",
            evidence=f"{self.outbox} has no row of this id and transaction id: it was deleted, or the table truncated",
            next_step="take it off the list with `harvest park drop`; nothing was changed",
        )

    def _missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        return ParkedRecordMissing(
            f"the subscription {self.subscription!r} has not parked: {shown_ids(ids)}",
            evidence=f"{self.table} does not list them",
            next_step="list the parked records with `harvest park list`; nothing was changed",
        )
