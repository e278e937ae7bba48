"""Operators' commands for parked records: list them, put them back into the outbox, or drop them.

A record that Kafka rejects permanently is *parked*: the whole row moves from the outbox into `<outbox>_parked`. Under
the policy `hold_key`, later records of its topic and key are *held*: they move to the same table and wait for the
parked record. The harvester moves records into the table, and this module moves records out of the table.

Promises
- Each change is a transaction that first takes the same lock as the harvester. So a record is in exactly one of the two
  tables, and a key is not released while the harvester is holding further records of the key.
- A record that is put back keeps its id and is not marked, so the next mark claims it in order of its id. In a native
  table it gets a new transaction_id, since sources that read by transaction have already passed the old one.
- A held record is put back in the transaction that removes the last parked record before it in its topic and key.
- Keys stay in order: if an earlier record of its key is still parked, a retried record is held behind that record.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from harvest_lib.errors import DatabaseAccessDenied, DatabaseError, OutboxTableError, ParkedRecordMissing
from harvest_lib.outbox.ddl_lock import lock_ddl
from harvest_lib.outbox.definitions import check_columns
from harvest_lib.outbox.parking import parked_queries as queries
from harvest_lib.outbox.parking.parked_record import (
    Dropped,
    ParkedCounts,
    ParkedRecord,
    ParkedRow,
    ParkedSelection,
    ParkedSummary,
    Retried,
)
from harvest_lib.outbox.parking.parked_row import field_of
from harvest_lib.outbox.table import LONGEST_NAME_BYTES, OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_SHOWN_IDS = 5
_MOST_SUMMARIZED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedRecord:
    """A record that a retry or drop concerns: it is selected, or it is held and has the key of a selected record."""

    id: int
    held: bool
    selected: bool
    behind: int | None
    """Id of the first record of the same topic and key that stays parked, if it is before this record; else None."""


class ParkedTable(ABC):
    """Operators' queries that `<outbox>_parked` and `<outbox>_parked_ids` have in common."""

    __slots__ = ()
    _count: ClassVar[str]
    _summary: ClassVar[str]
    _list: ClassVar[str]
    _show: ClassVar[str]
    _touch: ClassVar[str]

    outbox: OutboxTable
    _name: ClassVar[Literal["parked", "parked_ids"]]

    @property
    def table(self) -> OutboxTable:
        """The table of the parked records or ids. Raises OutboxTableError if its name would be too long."""
        table: OutboxTable = getattr(self.outbox, self._name)
        return table

    def exists(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if the table of parked records or ids exists."""
        return self.outbox.beside(connection, self._name) is not None

    @abstractmethod
    def _statement(self, connection: psycopg.Connection[Any], query: str) -> sql.Composed:
        """Return the statement with the names of tables and columns filled in."""

    @abstractmethod
    def _missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        """Return the error for selected ids that are not parked."""

    def _values(self, selection: ParkedSelection) -> dict[str, object]:
        ids = None if selection.ids is None else [*selection.ids]
        topics = None if selection.topics is None else [*selection.topics]
        return {"ids": ids, "topics": topics, "key": selection.key}

    def counts(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection | None = None
    ) -> ParkedCounts | None:
        """Count parked and held records. Return None if the table does not exist or this role may not read it.

        This reads the whole table, so use it for operators, not for each batch.
        """
        if not self.exists(connection):
            return None
        values = self._values(selection or ParkedSelection())
        with translated():
            readable = connection.execute(queries.READABLE, (str(self.table),)).fetchone()
            if readable is None or not readable[0]:
                return None
            row = connection.execute(self._statement(connection, self._count), values).fetchone()
        return ParkedCounts(parked=row[0], held=row[1]) if row is not None else None

    def summary(self, connection: psycopg.Connection[Any]) -> ParkedSummary:
        """Summarize parked and held records. Reads up to 10,000 records, so frequent checks can use it. Without a table
        nothing is parked. Raises DatabaseAccessDenied if this role may not read the table."""
        if not self.exists(connection):
            return ParkedSummary()
        values = {**self._values(ParkedSelection()), "most": _MOST_SUMMARIZED}
        try:
            with translated():
                row = connection.execute(self._statement(connection, self._summary), values).fetchone()
        except DatabaseAccessDenied as error:
            raise DatabaseAccessDenied(
                f"the user {connection.info.user!r} may not read {self.table}",
                evidence=error.evidence,
                next_step=f"GRANT SELECT ON {self.table} TO {_role(connection.info.user)}",
            ) from error
        parked, held, ids, topics, reasons, age = row or (0, 0, (), (), (), 0.0)
        return ParkedSummary(
            parked=parked,
            held=held,
            ids=tuple(ids),
            topics=tuple(topics),
            reasons=tuple(reasons),
            oldest_age_seconds=max(0.0, age),
            is_estimate=parked + held >= _MOST_SUMMARIZED,
        )

    def list(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection | None = None, *, limit: int = 100
    ) -> Sequence[ParkedRecord]:
        """Return up to `limit` of the selected records, ascending by id."""
        values = {**self._values(selection or ParkedSelection()), "limit": limit}
        with translated(), connection.cursor(row_factory=class_row(ParkedRecord)) as cursor:
            return cursor.execute(self._statement(connection, self._list), values).fetchall()

    def show(self, connection: psycopg.Connection[Any], record_id: int) -> ParkedRow:
        """Return a record with its payload. Raises ParkedRecordMissing if the id is not parked."""
        values = {**self._values(ParkedSelection()), "id": record_id}
        with translated(), connection.cursor(row_factory=class_row(ParkedRow)) as cursor:
            found = cursor.execute(self._statement(connection, self._show), values).fetchone()
        if found is None:
            raise self._missing([record_id])
        return found

    def _touched(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection, **values: bool
    ) -> Sequence[TouchedRecord]:
        with connection.transaction(), connection.cursor(row_factory=class_row(TouchedRecord)) as cursor:
            statement = self._statement(connection, self._touch)
            cursor.execute(queries.BY_HASH)
            touched = cursor.execute(statement, {**self._values(selection), **values}).fetchall()
        missing = sorted(set(selection.ids or ()).difference(each.id for each in touched if each.selected))
        if missing:
            raise self._missing(missing)
        return touched


def planned_retry(
    touched: Sequence[TouchedRecord], *, keep_order: bool
) -> tuple[Sequence[TouchedRecord], Sequence[TouchedRecord], Retried]:
    """Return three values: the records to put back, the selected records that wait behind a parked record, and the
    result of the retry."""
    back = [each for each in touched if each.behind is None or (each.selected and not keep_order)]
    waiting = [each for each in touched if each.selected and each.behind is not None and keep_order]
    held = sum(each.held for each in back)
    behind = sorted({each.behind for each in waiting if each.behind is not None})[:_SHOWN_IDS]
    return back, waiting, Retried(parked=len(back) - held, held=held, waiting=len(waiting), behind=tuple(behind))


def shown_ids(ids: Sequence[int]) -> str:
    """Format ids for a text. If there are many ids, the text has the first few ids and the number of further ids."""
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(str(each) for each in ids[:_SHOWN_IDS]) + more


@dataclass(frozen=True, slots=True)
class ParkedRecords(ParkedTable):
    """The table `<outbox>_parked`, with the parked records of an outbox."""

    outbox: OutboxTable
    _name: ClassVar = "parked"
    _count: ClassVar = queries.COUNT
    _summary: ClassVar = queries.SUMMARY
    _list: ClassVar = queries.LIST
    _show: ClassVar = queries.SHOW
    _touch: ClassVar = queries.TOUCHED

    # -- the table

    def create_statement(self) -> sql.Composed:
        """Return the two statements that create the table and its index."""
        return _create_statement(self.table)

    def create(self, connection: psycopg.Connection[Any]) -> bool:
        """Create the table, in the outbox's schema, unless it exists. Return True if it was created."""
        if self.table.exists(connection):
            return False
        with translated(), connection.transaction():
            lock_ddl(connection, str(self.outbox))
            existed = self.table.exists(connection)
            # Without a schema, CREATE would use the first schema of the search path: it may differ from the outbox's.
            outbox = self.outbox.placed(connection) if self.outbox.exists(connection) else self.outbox
            if not existed:  # even CREATE … IF NOT EXISTS requires the privilege to create
                connection.execute(_create_statement(outbox.parked))
        return not existed

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError or DatabaseAccessDenied if this role cannot park, retry and drop records."""
        if not self.table.exists(connection):
            raise OutboxTableError(
                f"there is no table {self.table} for parked records in this database",
                evidence=f"database {connection.info.dbname!r}, user {connection.info.user!r}",
                next_step="create it with `harvest init`, or park nothing: `parking: stop`",
            )
        check_columns(connection, self.table, queries.CREATE)
        with translated():
            answer = connection.execute(queries.PRIVILEGES, {"table": str(self.table)}).fetchone()
        if answer is not None and not answer[0]:
            raise DatabaseAccessDenied(
                f"the user {answer[1]!r} may not park records in {self.table}",
                evidence="SELECT, INSERT and DELETE are needed, at least one is missing",
                next_step=f"GRANT SELECT, INSERT, DELETE ON {self.table} TO {_role(answer[1])}",
            )

    # -- resolving

    def retry(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection, *, keep_order: bool = True
    ) -> Retried:
        """Put the selected records, and the records held behind them, back into the outbox, in a single transaction.

        If an earlier record of its key stays parked, a selected record is held, and later put back together with that
        record. If `keep_order` is false, which suits the policy `skip`, every selected record is put back at once.
        Needs INSERT on the outbox. If a selected id is not parked, changes nothing and raises ParkedRecordMissing.
        """
        with self._changing(connection):
            touched = self._touched(connection, selection, parked_only=False)
            back, waiting, retried = planned_retry(touched, keep_order=keep_order)
            self._put_back(connection, back)
            self._hold(connection, [each for each in waiting if not each.held])
        return retried

    def drop(self, connection: psycopg.Connection[Any], selection: ParkedSelection) -> Dropped:
        """Delete parked records permanently, and put back the records held behind them, in a single transaction.

        A selection by topic or key, or of all records, drops parked records only; a held record is dropped only by its
        id. Needs INSERT on the outbox if records were held. If a selected id is not parked, changes nothing and raises
        ParkedRecordMissing.
        """
        with self._changing(connection):
            touched = self._touched(connection, selection, parked_only=selection.ids is None)
            gone = [each.id for each in touched if each.selected]
            released = [each for each in touched if not each.selected and each.behind is None]
            connection.execute(self._statement(connection, queries.DELETE), {"ids": gone})
            self._put_back(connection, released)
        return Dropped(dropped=len(gone), released=len(released))

    @contextmanager
    def _changing(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Open a transaction and lock the table, so that no other session moves records into it or out of it."""
        try:
            with translated(), connection.transaction():
                connection.execute(self._statement(connection, queries.LOCK), {})
                yield
        except DatabaseAccessDenied as error:
            raise DatabaseAccessDenied(
                f"the user {connection.info.user!r} may not move records between {self.table} and {self.outbox}",
                evidence=error.evidence,
                next_step=f"GRANT SELECT, INSERT, DELETE ON {self.table} TO {_role(connection.info.user)}; "
                f"GRANT SELECT, INSERT ON {self.outbox} TO {_role(connection.info.user)}",
            ) from error

    def _put_back(self, connection: psycopg.Connection[Any], records: Sequence[TouchedRecord]) -> None:
        if not records:
            return
        values = {"ids": [each.id for each in records], "outbox": str(self.outbox)}
        try:
            # A row that was parked before a column was added gets the default of that column.
            for columns, types, ids in connection.execute(
                self._statement(connection, queries.SHAPES), values
            ).fetchall():
                statement = sql.SQL(queries.PUT_BACK).format(
                    parked=in_statement(self.table.identifier),
                    outbox=in_statement(self.outbox.identifier),
                    columns=sql.SQL(", ").join(in_statement(sql.Identifier(name)) for name in columns),
                    fields=sql.SQL(", ").join(map(field_of, columns, types)),
                )
                connection.execute(statement, {"ids": ids})
        except psycopg.errors.UniqueViolation as error:
            raise DatabaseError(
                "a record cannot be put back: its id is taken in the outbox",
                evidence=f"{self.outbox}, constraint {error.diag.constraint_name}",
                next_step="compare both rows: were ids given out again after a restore? Drop the parked row if it is "
                "the same record",
            ) from error

    def _hold(self, connection: psycopg.Connection[Any], records: Sequence[TouchedRecord]) -> None:
        if records:
            values = {"ids": [each.id for each in records], "behind": [each.behind for each in records]}
            connection.execute(self._statement(connection, queries.HOLD), values)

    def _statement(self, connection: psycopg.Connection[Any], query: str) -> sql.Composed:  # noqa: ARG002 - needs no query
        return sql.SQL(query).format(parked=in_statement(self.table.identifier))

    def _missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        return ParkedRecordMissing(
            f"{'this record is' if len(ids) == 1 else 'these records are'} not parked: {shown_ids(ids)}",
            evidence=f"{self.table} does not have {'it' if len(ids) == 1 else 'them'}",
            next_step="list the parked records with `harvest park list`; nothing was changed",
        )


def _create_statement(table: OutboxTable) -> sql.Composed:
    return sql.SQL(queries.CREATE).format(table=table.identifier, index=sql.Identifier(_index_name(table.parts[-1])))


def _index_name(table: str) -> str:
    """Return the name of the index: the table's name with a suffix. If it would be too long, a hash replaces the
    table's name."""
    name = f"{table}_key"
    if len(name.encode()) <= LONGEST_NAME_BYTES:
        return name
    return f"parked_{hashlib.sha256(table.encode()).hexdigest()[:16]}_key"


def _role(name: str) -> str:
    return sql.Identifier(name).as_string(None)
