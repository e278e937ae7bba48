"""Copy of tables: all their rows, read under one snapshot.

In a snapshot, a table that was truncated or rewritten after the snapshot looks empty. So all tables are locked (ACCESS
SHARE) before the first row is read, and the catalogue is read both before the snapshot and under the locks. If the
catalogue has changed in between, another snapshot is taken. That loses nothing: the slot sends all changes since its
creation.
"""

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.clock import Deadline
from harvest_lib.pipeline.adaptors.postgres.catalog import SELECT_GRANT, Table, refusals, rows_of
from harvest_lib.pipeline.adaptors.postgres.options import PostgresReading
from harvest_lib.pipeline.adaptors.postgres.slot import known_of, require_followed
from harvest_lib.pipeline.adaptors.postgres.values import reader_of
from harvest_lib.pipeline.bounds import Room, size_of
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.postgres.database import lift_timeouts

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.2
_PATIENCE_SECONDS = 5.0
"""A wait for other sessions that is longer than this is logged."""

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_PATIENCE, _NO_PATIENCE = "SET LOCAL lock_timeout = 500", "SET LOCAL lock_timeout = 0"
"""The time limit is shorter than `deadlock_timeout`, so that in a deadlock the copy fails, not the other session."""
_LOCK = sql.SQL("SELECT {} FROM {} LIMIT 0")
"""This statement locks the partitions too, and needs only the privilege to read the columns."""
_NOW = "SELECT (extract(epoch FROM now()) * 1000)::int8"
_XMAX = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"
# The sessions and prepared transactions that hold a transaction id. Every role can see these locks.
_OPEN = """
SELECT coalesce('pid ' || l.pid || coalesce(' (' || a.state || ')', ''),
                'the prepared transaction ' || quote_literal(p.gid), 'a prepared transaction')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.pid IS DISTINCT FROM pg_backend_pid()
GROUP BY 1 ORDER BY max(age(l.transactionid)) DESC LIMIT 3
"""
_ENDED = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8 >= %s"


class Copy:
    """A single copy of tables."""

    def __init__(
        self,
        options: PostgresReading,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        again: Callable[[Sequence[Table]], Sequence[Table] | None],
        note: Callable[[Sequence[Table]], PipelineMessage],
    ) -> None:
        """`connect` opens the connection of the copy. `again` reads tables from the catalogue again, on another
        connection, and returns None if another session has locked a table. `note` returns the NOOP that records the
        tables that are followed."""
        self._slot, self._batch_rows = options.slot, options.batch_rows
        self._connect = connect
        self._again = again
        self._note = note

    def run(
        self, tables: Sequence[Table], snapshot: str | None, *, sent: Collection[str]
    ) -> Generator[Sequence[PipelineMessage], None, Mapping[str, Table]]:
        """Yield the rows of tables. All rows are read under the exported snapshot named `snapshot`. If `snapshot` is
        None, or if the tables have changed, the rows are read under a new snapshot. The last message of each table is
        marked COMPLETE. Return the tables by namespace, as the catalogue had them under the locks.

        `sent` are the namespaces of tables that were sent before. Raises PositionLost if changes of such a table were
        missed.
        """
        patience, settled_for = waiting(self._slot, "locks on the tables"), None
        with closing(self._connect()) as connection:
            while True:
                if snapshot is None and settled_for != (following := known_of(tables, {})):
                    yield from self._until_settled(connection)
                    settled_for = following
                    tables = (yield from self._noted(tables, sent)) or tables
                    continue
                is_held = _held(connection, tables, snapshot=snapshot)
                now = yield from self._noted(tables, sent)
                if is_held and now == tables:
                    break
                if is_held:
                    connection.execute("ROLLBACK")
                if now is not None and now != tables:
                    tables, snapshot = now, None
                next(patience)
                yield []
            yield from self._rows(connection, tables)
        return {each.namespace: each for each in tables}

    def _noted(
        self, tables: Sequence[Table], sent: Collection[str]
    ) -> Generator[Sequence[PipelineMessage], None, Sequence[Table] | None]:
        """Return the tables as the catalogue has them now, None if another session has locked one of them. If the
        tables have changed, first yield the NOOP that records the tables. Raises PositionLost as `run` does."""
        known, now = known_of(tables, {}), self._again(tables)
        if now is not None and known_of(now, {}) != known:
            require_followed([each for each in now if each.namespace in sent], known, slot=self._slot)
            yield [self._note(now)]
        return now

    def _until_settled(self, connection: psycopg.Connection[Any]) -> Iterator[Sequence[PipelineMessage]]:
        """Wait until all transactions that are open at the call have ended. Yields empty batches.

        Postgres does not send changes that were made before a table was published. If the slot existed before the table
        was published, transactions with such changes must end before the snapshot, so that the snapshot contains the
        changes.
        """
        (latest,) = rows_of(connection, "transactions", _XMAX)
        patience = waiting(self._slot, lambda: open_transactions(connection))
        while rows_of(connection, "transactions", _ENDED, latest) != [(True,)]:
            next(patience)
            time.sleep(_WAIT_SECONDS)
            yield []

    def _rows(
        self, connection: psycopg.Connection[Any], tables: Sequence[Table]
    ) -> Iterator[Sequence[PipelineMessage]]:
        """Yield all rows in the transaction that `_held` began, then commit it."""
        with refusals("to copy", SELECT_GRANT):
            (row,) = connection.execute(_NOW)
            for table in tables:
                yield from _table(connection, table, row[0], self._batch_rows)
            connection.execute("COMMIT")


def waiting(slot: str, what: str | Callable[[], str]) -> Iterator[None]:
    """Return an iterator that a caller advances in each turn of a loop that waits for other sessions. After 5 s, the
    iterator logs once that the reader waits. `what` describes the other sessions."""
    deadline = Deadline(_PATIENCE_SECONDS)
    while not deadline.passed:
        yield
    _log.info("reader_waits", extra={"slot": slot, "reason": what if isinstance(what, str) else what()})
    while True:
        yield


def open_transactions(connection: psycopg.Connection[Any]) -> str:
    """Return a text that names up to three open transactions, the oldest on the server."""
    names = [str(name) for (name,) in rows_of(connection, "transactions", _OPEN)]
    return ": ".join(["transactions that are open", *([", ".join(names)] if names else [])])


@contextmanager
def impatient(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Limit to 0.5 s how long a statement in the block waits for a lock. Postgres has to lock the tables of a
    publication to list them."""
    with refusals("to read the catalogue", SELECT_GRANT), connection.transaction():
        connection.execute(_PATIENCE)
        yield connection


def _held(connection: psycopg.Connection[Any], tables: Sequence[Table], *, snapshot: str | None) -> bool:
    """Begin a transaction with a single snapshot, and lock the tables in it. Return False, with no transaction open, if
    that is impossible at present: another session has locked a table, or a table has changed."""
    with refusals("to copy", SELECT_GRANT):
        lift_timeouts(connection)
        connection.execute(_BEGIN)
        try:
            if snapshot is not None:
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            connection.execute(_PATIENCE)
            for table in tables:
                connection.execute(_LOCK.format(_columns(table), table.rows))
            connection.execute(_NO_PATIENCE)
        except (pg.LockNotAvailable, pg.DeadlockDetected, pg.UndefinedTable, pg.UndefinedColumn):
            connection.execute("ROLLBACK")
            return False
    return True


def _columns(table: Table) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, table.columns))


def _table(
    connection: psycopg.Connection[Any], table: Table, timestamp: int, batch_rows: int
) -> Iterator[Sequence[PipelineMessage]]:
    names = list(table.columns)
    readers = [reader_of(oid) for oid in table.columns.values()]
    statement = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
        _columns(table),
        table.rows,
        sql.SQL(f" WHERE {table.row_filter}" if table.row_filter else ""),
    )
    batch: list[PipelineMessage] = []
    room = Room(batch_rows)
    # COPY formats values in the same way as changes.
    with refusals(f"to copy {table.namespace}", SELECT_GRANT), connection.cursor().copy(statement) as copy:
        for row in copy.rows():
            data = {
                name: read(value) if value is not None else None
                for name, read, value in zip(names, readers, row, strict=True)
            }
            batch.append(PipelineMessage(Op.INSERT, timestamp, table.namespace, data, Mode.COPY))
            if room.take(size_of(row)):
                yield batch
                batch = []
                room.empty()
    yield [*batch, PipelineMessage(Op.NOOP, timestamp, table.namespace, {}, Mode.COMPLETE)]
