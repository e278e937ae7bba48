"""Contents of tables: all rows, read under one snapshot.

A snapshot shows a table that was emptied or rewritten after it without any rows. So all tables are locked (ACCESS
SHARE) before the first is read, and the catalogue is read before the snapshot and behind the locks. If it differs,
another snapshot is taken: all changes since the slot was made follow in any case.
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
"""A longer wait for other sessions is logged."""

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_PATIENCE, _NO_PATIENCE = "SET LOCAL lock_timeout = 500", "SET LOCAL lock_timeout = 0"
"""Shorter than `deadlock_timeout`: in a deadlock the copy gives up, not the other session."""
_LOCK = sql.SQL("SELECT {} FROM {} LIMIT 0")
"""It locks the partitions too, and needs no more rights than to read the columns."""
_NOW = "SELECT (extract(epoch FROM now()) * 1000)::int8"
_XMAX = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"
# The holders of transaction ids: every role can see these locks, which include prepared transactions.
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
    """Copies tables, once."""

    def __init__(
        self,
        options: PostgresReading,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        again: Callable[[Sequence[Table]], Sequence[Table] | None],
        note: Callable[[Sequence[Table]], PipelineMessage],
    ) -> None:
        """Prepare. `again` reads tables from the catalogue once more, on its own connection; it returns None while
        another session locks a table. `note` returns the message that records how the tables are followed."""
        self._slot, self._batch_rows = options.slot, options.batch_rows
        self._connect = connect
        self._again = again
        self._note = note

    def run(
        self, tables: Sequence[Table], snapshot: str | None, *, sent: Collection[str]
    ) -> Generator[Sequence[PipelineMessage], None, Mapping[str, Table]]:
        """Copy tables as of a snapshot: the exported snapshot of this name, or a new one. The last message of each
        table is marked COMPLETE. Return the tables as they are by then, by namespace.

        `sent` has the namespaces that were sent before: PositionLost is raised if such a table was not always followed.
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
        """Return the tables as they are now, None if they are unknown; yield a note if they changed."""
        known, now = known_of(tables, {}), self._again(tables)
        if now is not None and known_of(now, {}) != known:
            require_followed([each for each in now if each.namespace in sent], known, slot=self._slot)
            yield [self._note(now)]
        return now

    def _until_settled(self, connection: psycopg.Connection[Any]) -> Iterator[Sequence[PipelineMessage]]:
        """Wait until all transactions that are open now have ended.

        Changes from before a table was published are not sent. If the slot existed, transactions with such changes end
        before the snapshot is taken, so that the snapshot contains them.
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
        """Return all rows by the transaction that `_held` began, and end it."""
        with refusals("to copy", SELECT_GRANT):
            (row,) = connection.execute(_NOW)
            for table in tables:
                yield from _table(connection, table, row[0], self._batch_rows)
            connection.execute("COMMIT")


def waiting(slot: str, what: str | Callable[[], str]) -> Iterator[None]:
    """Log a wait for other sessions once it is long. The caller iterates at each turn of the wait."""
    deadline = Deadline(_PATIENCE_SECONDS)
    while not deadline.passed:
        yield
    _log.info("reader_waits", extra={"slot": slot, "reason": what if isinstance(what, str) else what()})
    while True:
        yield


def open_transactions(connection: psycopg.Connection[Any]) -> str:
    """Return a text that names the oldest open transactions of the whole server."""
    names = [str(name) for (name,) in rows_of(connection, "transactions", _OPEN)]
    return ": ".join(["transactions that are open", *([", ".join(names)] if names else [])])


@contextmanager
def impatient(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Limit the time that statements wait for a lock: Postgres locks tables to list a publication's tables."""
    with refusals("to read the catalogue", SELECT_GRANT), connection.transaction():
        connection.execute(_PATIENCE)
        yield connection


def _held(connection: psycopg.Connection[Any], tables: Sequence[Table], *, snapshot: str | None) -> bool:
    """Begin a transaction with one snapshot that keeps tables as they are. Return False if that is impossible for now:
    another session locks a table, or a table has changed."""
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
    # By COPY, since that spells values as changes do.
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
