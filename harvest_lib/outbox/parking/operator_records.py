"""Parked records, for operators: list them, put them back or drop them.

A record that Kafka rejects permanently is *parked*: moved whole from the outbox into the table `<outbox>_parked`.
Under the policy `hold_key` later records of its topic and key are *held*: moved there too, behind it. The harvester
moves records in; this module moves them out.

Promises
- Each change is a transaction that begins with the harvester's lock: a record is in exactly one of the two tables, and
  a key is not released while the harvester holds more records of it.
- A record that is put back keeps its id and has no mark, so the next mark takes it at its old place. In a native table
  it gets a new transaction_id: sources that read by transaction have passed the old id.
- A held record goes back in the transaction that removes the last parked record before it in its topic and key.
- Keys stay in order: a retried record behind a parked record of its key is held behind it.
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
    Retried,
)
from harvest_lib.outbox.parking.parked_row import field_of
from harvest_lib.outbox.table import LONGEST_NAME_BYTES, OutboxTable
from harvest_lib.postgres.database import in_statement, translated

_SHOWN_IDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedRecord:
    """A record of a change: selected, or held with the key of a selected record."""

    id: int
    held: bool
    selected: bool
    behind: int | None
    """The first record of its topic and key that stays parked, if it is before this record."""


class ParkedTable(ABC):
    """Operators' queries and commands for parked records, in either of the two places."""

    __slots__ = ()
    _count: ClassVar[str]
    _list: ClassVar[str]
    _show: ClassVar[str]
    _touch: ClassVar[str]

    outbox: OutboxTable
    _name: ClassVar[Literal["parked", "parked_ids"]]

    @property
    def table(self) -> OutboxTable:
        """The table that has or lists them. Raises OutboxTableError if its name would be too long."""
        table: OutboxTable = getattr(self.outbox, self._name)
        return table

    def exists(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if that table exists."""
        return self.outbox.beside(connection, self._name) is not None

    @abstractmethod
    def _statement(self, connection: psycopg.Connection[Any], query: str) -> sql.Composed:
        """Fill in names."""

    @abstractmethod
    def _missing(self, ids: Sequence[int]) -> ParkedRecordMissing:
        """Return the error of ids that are not parked."""

    def _values(self, selection: ParkedSelection) -> dict[str, object]:
        ids = None if selection.ids is None else [*selection.ids]
        return {"ids": ids, "topic": selection.topic, "key": selection.key}

    def counts(
        self, connection: psycopg.Connection[Any], selection: ParkedSelection | None = None
    ) -> ParkedCounts | None:
        """Count parked and held records; None if the table does not exist or is not readable.

        Reads the whole table: for operators, not for the hot path.
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

    def list(
        self, connection: psycopg.Connection[Any], *, topic: str | None = None, key: str | None = None, limit: int = 100
    ) -> Sequence[ParkedRecord]:
        """Return up to `limit` records, ascending by id."""
        values = {**self._values(ParkedSelection(topic=topic, key=key)), "limit": limit}
        with translated(), connection.cursor(row_factory=class_row(ParkedRecord)) as cursor:
            return cursor.execute(self._statement(connection, self._list), values).fetchall()

    def show(self, connection: psycopg.Connection[Any], record_id: int) -> ParkedRow:
        """Return one record, payload included. Raises ParkedRecordMissing."""
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
    """Return the records that go back, the selected records that wait behind a parked record, and the summary."""
    back = [each for each in touched if each.behind is None or (each.selected and not keep_order)]
    waiting = [each for each in touched if each.selected and each.behind is not None and keep_order]
    held = sum(each.held for each in back)
    behind = sorted({each.behind for each in waiting if each.behind is not None})[:_SHOWN_IDS]
    return back, waiting, Retried(parked=len(back) - held, held=held, waiting=len(waiting), behind=tuple(behind))


def shown_ids(ids: Sequence[int]) -> str:
    """Format ids, of many the first few."""
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(str(each) for each in ids[:_SHOWN_IDS]) + more


@dataclass(frozen=True, slots=True)
class ParkedRecords(ParkedTable):
    """The parked records of an outbox."""

    outbox: OutboxTable
    _name: ClassVar = "parked"
    _count: ClassVar = queries.COUNT
    _list: ClassVar = queries.LIST
    _show: ClassVar = queries.SHOW
    _touch: ClassVar = queries.TOUCHED

    # -- the table

    def create_statement(self) -> sql.Composed:
        """Return the DDL: two statements."""
        return _create_statement(self.table)

    def create(self, connection: psycopg.Connection[Any]) -> bool:
        """Create the table, in the outbox's schema, unless it is there; return True if it was created."""
        if self.table.exists(connection):
            return False
        with translated(), connection.transaction():
            lock_ddl(connection, str(self.outbox))
            existed = self.table.exists(connection)
            # CREATE takes the first schema of the search path, which may not be the outbox's.
            outbox = self.outbox.placed(connection) if self.outbox.exists(connection) else self.outbox
            if not existed:  # CREATE would require a privilege that is not needed then
                connection.execute(_create_statement(outbox.parked))
        return not existed

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError or DatabaseAccessDenied if records cannot be parked, retried and dropped."""
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
        """Put records back into the outbox, and the records held behind them, in a single transaction.

        A selected record is held while an earlier record of its key stays parked, and goes back together with it. With
        `keep_order` false, which suits the policy `skip`, it goes back at once. Needs INSERT on the outbox. Raises
        ParkedRecordMissing, having changed nothing, if a selected id is not parked.
        """
        with self._changing(connection):
            touched = self._touched(connection, selection, parked_only=False)
            back, waiting, retried = planned_retry(touched, keep_order=keep_order)
            self._put_back(connection, back)
            self._hold(connection, [each for each in waiting if not each.held])
        return retried

    def drop(self, connection: psycopg.Connection[Any], selection: ParkedSelection) -> Dropped:
        """Delete parked records permanently, and put back the records held behind them, in a single transaction.

        A selection by topic or key, or of all, drops parked records only; a held record is dropped only by its id.
        Needs INSERT on the outbox if records were held. Raises ParkedRecordMissing, having changed nothing, if a
        selected id is not parked.
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
        """Open a transaction and lock the table, so that no other session moves records in or out."""
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
            # Rows that were parked before a column was added get the column's default.
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
    """Return the index's name: the table's with a suffix, or a hash if that would be too long."""
    name = f"{table}_key"
    if len(name.encode()) <= LONGEST_NAME_BYTES:
        return name
    return f"parked_{hashlib.sha256(table.encode()).hexdigest()[:16]}_key"


def _role(name: str) -> str:
    return sql.Identifier(name).as_string(None)
