"""What a subscription that reads in batches has parked, for people: to be listed, sent again or dropped.

The records are in the outbox; here are their ids. The harvester that leads acts on what is changed here within about a
second, or the next one when it leads: nothing is moved by these commands themselves.

Promises
- Each change is one statement or one transaction: harvesters go on beside it.
- No key is put out of order: what is retried behind a parked record of its key waits for that one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from harvest_lib.database import in_statement, translated
from harvest_lib.errors import DatabaseAccessDenied, ParkedRecordMissing
from harvest_lib.outbox import parked_queries as queries
from harvest_lib.outbox.parked import TouchedRecord
from harvest_lib.outbox.parked_record import Dropped, ParkedCounts, ParkedRecord, ParkedRow, ParkedSelection, Retried
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.table import OutboxTable

_SHOWN_IDS = 5


@dataclass(frozen=True, slots=True)
class ParkedIdTable:
    """The records that one subscription of an outbox has parked. `id_column` is where the outbox has its ids, and
    `transaction_id_column` the transactions that wrote its rows."""

    outbox: OutboxTable
    subscription: str = "default"
    id_column: sql.Composable = field(default_factory=lambda: sql.Identifier("id"))
    transaction_id_column: sql.Composable = field(default_factory=lambda: sql.Identifier("transaction_id"))

    @property
    def table(self) -> OutboxTable:
        """The table that lists them. Raises OutboxTableError if the outbox's name is too long to be lengthened."""
        return self.outbox.parked_ids

    # -- looking

    def counts(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection | None = None
    ) -> ParkedCounts | None:
        """Count what is parked; None if there is no such table, or none this user may read."""
        with translated():
            readable = connection.execute(queries.READABLE, (self.table.identifier.as_string(connection),)).fetchone()
            if readable is None or not readable[0]:
                return None
            values = self._values(selection or ParkedSelection())
            row = connection.execute(self._statement(queries.COUNT_LISTED), values).fetchone()
        return ParkedCounts(parked=row[0], held=row[1]) if row is not None else None

    def list(
        self, connection: psycopg.Connection[Any], *, topic: str | None = None, key: str | None = None, limit: int = 100
    ) -> Sequence[ParkedRecord]:
        """Return up to `limit` records, ascending by id."""
        values = {**self._values(ParkedSelection(topic=topic, key=key)), "limit": limit}
        with translated(), connection.cursor(row_factory=class_row(ParkedRecord)) as cursor:
            return cursor.execute(
                self._statement(queries.LIST_LISTED, sees_rows=self._sees_rows(connection)), values
            ).fetchall()

    def show(self, connection: psycopg.Connection[Any], record_id: int) -> ParkedRow:
        """Return one record, payload included. Raises ParkedRecordMissing."""
        values = {"subscription": self.subscription, "id": record_id}
        with translated(), connection.cursor(row_factory=class_row(ParkedRow)) as cursor:
            found = cursor.execute(
                self._statement(queries.SHOW_LISTED, sees_rows=self._sees_rows(connection)), values
            ).fetchone()
        if found is None:
            raise self._missing([record_id])
        return found

    # -- resolving

    def retry(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection, *, keep_order: bool = True
    ) -> Retried:
        """Ask for records to be sent again, and those held behind them with them.

        A selected record waits while an earlier one of its key stays parked, unless `keep_order` is false, which suits
        the policy `skip`. Those whose rows are gone are left out. Raises ParkedRecordMissing, having changed nothing,
        if an id is not there, or its row is gone.
        """
        with translated(), connection.transaction():
            if selection.ids is not None and (gone := self._gone(connection, selection)):
                raise self._rows_missing(gone)
            touched = self._touched(connection, selection, parked_only=False, retried_stays=False)
            back = [each for each in touched if each.behind is None or (each.selected and not keep_order)]
            waiting = [each for each in touched if each.selected and each.behind is not None and keep_order]
            asked = [each.id for each in touched if each.selected]
            connection.execute(self._statement(queries.RETRY_LISTED), {**self._values(selection), "ids": asked})
        held = sum(each.held for each in back)
        behind = sorted({each.behind for each in waiting if each.behind is not None})
        return Retried(parked=len(back) - held, held=held, waiting=len(waiting), behind=tuple(behind[:_SHOWN_IDS]))

    def drop(self, connection: psycopg.Connection[Any], selection: ParkedSelection) -> Dropped:
        """Have parked records never sent to this subscription, and those held behind them sent.

        By topic, by key or all, only parked ones are dropped; a held one is dropped only by its id. Raises
        ParkedRecordMissing, having changed nothing, if an id is not there. Those whose rows are gone are dropped too:
        nothing is held behind them.
        """
        with translated(), connection.transaction():
            without_row = self._gone(connection, selection)
            if selection.ids is not None:
                selection = replace(selection, ids=[each for each in selection.ids if each not in without_row])
            touched = self._touched(connection, selection, parked_only=selection.ids is None, retried_stays=True)
            gone = [*without_row, *(each.id for each in touched if each.selected)]
            released = [each.id for each in touched if not each.selected and each.behind is None]
            connection.execute(self._statement(queries.DROP_LISTED), {**self._values(selection), "ids": gone})
            connection.execute(self._statement(queries.RETRY_LISTED), {**self._values(selection), "ids": released})
        return Dropped(dropped=len(gone), released=len(released))

    def _gone(self, connection: psycopg.Connection[Any], selection: ParkedSelection) -> Sequence[int]:
        rows = connection.execute(
            self._statement(queries.GONE_LISTED, sees_rows=self._sees_rows(connection)), self._values(selection)
        ).fetchall()
        return [record_id for (record_id,) in rows]

    def _touched(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection, *, parked_only: bool, retried_stays: bool
    ) -> Sequence[TouchedRecord]:
        values = {**self._values(selection), "parked_only": parked_only, "retried_stays": retried_stays}
        with connection.cursor(row_factory=class_row(TouchedRecord)) as cursor:
            touched = cursor.execute(
                self._statement(queries.TOUCHED_LISTED, sees_rows=self._sees_rows(connection)), values
            ).fetchall()
        missing = sorted(set(selection.ids or ()).difference(each.id for each in touched if each.selected))
        if missing:
            raise self._missing(missing)
        return touched

    def _values(self, selection: ParkedSelection) -> dict[str, object]:
        ids = None if selection.ids is None else [*selection.ids]
        return {"subscription": self.subscription, "ids": ids, "topic": selection.topic, "key": selection.key}

    def _sees_rows(self, connection: psycopg.Connection[Any]) -> bool:
        """Tell whether this user may see all rows of the outbox. To others, what they do not see is not gone."""
        name = self.outbox.identifier
        readable = connection.execute(queries.READABLE, (name.as_string(connection),)).fetchone()
        try:
            check_all_rows(connection, [name])
        except DatabaseAccessDenied:
            return False
        return readable == (True,)

    def _statement(self, query: str, *, sees_rows: bool = True) -> sql.Composed:
        names: dict[str, sql.Composable] = {
            "parked_ids": in_statement(self.table.identifier),
            "outbox": in_statement(self.outbox.identifier),
            "id": _spelled(self.id_column),
            "transaction_id": _spelled(self.transaction_id_column),
        }
        matches = sql.SQL(queries.MATCHES).format(**names) if sees_rows else sql.SQL("true")
        return sql.SQL(query).format(parked=sql.Identifier("parked"), matches=matches, **names)

    def _rows_missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        return ParkedRecordMissing(
            f"what was parked is no longer in the outbox: {_shown(ids)}",
            evidence=f"looked for in {self.outbox} by id and transaction id: it was deleted, or the table truncated",
            next_step="take it off the list with `harvest park drop`; nothing was changed",
        )

    def _missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        return ParkedRecordMissing(
            f"the subscription {self.subscription!r} has not parked: {_shown(ids)}",
            evidence=f"looked for in {self.table}",
            next_step="see with `harvest park list` what it has; nothing was changed",
        )


def _shown(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(str(each) for each in ids[:_SHOWN_IDS]) + more


def _spelled(column: sql.Composable) -> sql.Composable:
    return in_statement(column) if isinstance(column, sql.Identifier) else column
