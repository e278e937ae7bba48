"""Tables for the tests of sources that read by pages: one in memory, and the native one, by the same handle.

A transaction takes its id when it begins, so that tests say in which order ids are given out.
"""

import json
from contextlib import contextmanager
from itertools import count
from uuid import uuid4

import psycopg
from psycopg import sql
from support.waiting import eventually

from harvest_lib.errors import CheckpointError, DatabaseUnavailable
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.source import Page, Selection, SnapshotSource, TransactionIdSource
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot

_INSERT = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %(topic)s, %(key)s, v FROM unnest(%(values)s) WITH ORDINALITY AS given (v, place) ORDER BY place
RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values
"""


class FakePagedTable:
    """Records and the transactions that wrote them. `snapshot` says which have ended, as Postgres would."""

    def __init__(self):
        self.rows = {}  # id -> (row, transaction id)
        self.open, self.aborted = set(), set()
        self.backend = 0  # raised by `lose`
        self._next_transaction, self._next_id = 10, count(1)

    def begin(self):
        self._next_transaction += 1
        self.open.add(self._next_transaction - 1)
        return FakeTransaction(self, self._next_transaction - 1)

    def insert(self, *rows):
        """Commit rows in one transaction, with the ids they have."""
        transaction = self.begin()
        for row in rows:
            self.rows[row[0]] = row, transaction.id
        transaction.commit()

    def write(self, key, *values, topic="t"):
        transaction = self.begin()
        rows = transaction.write(key, *values, topic=topic)
        transaction.commit()
        return rows

    def next_id(self):
        return next(number for number in self._next_id if number not in self.rows)

    def snapshot(self):
        return Snapshot(
            min(self.open, default=self._next_transaction), self._next_transaction, tuple(sorted(self.open))
        )

    def visible(self, snapshot):
        """Yield rows by id, each with its transaction."""
        for _, (row, transaction) in sorted(self.rows.items()):
            if transaction not in self.aborted and snapshot.sees(transaction):
                yield row, transaction

    def source(self, *, start=NOTHING, keys=None):
        return FakePagedSource(self, start=start, keys=keys)

    def lose(self, _source):
        """End the connections of its sources behind their backs."""
        self.backend += 1

    def close(self):
        pass


class FakeTransaction:
    def __init__(self, table, transaction_id):
        self.id = transaction_id
        self._table = table
        self._ids = []

    def write(self, key, *values, topic="t"):
        rows = [(self._table.next_id(), topic, key, value, [], []) for value in values or ("v",)]
        for row in rows:
            self._table.rows[row[0]] = row, self.id
            self._ids.append(row[0])
        return rows

    @contextmanager
    def undone(self):
        """Roll back, to a savepoint, what is written inside."""
        before = len(self._ids)
        yield
        for record_id in self._ids[before:]:
            del self._table.rows[record_id]
        del self._ids[before:]

    @contextmanager
    def kept(self):
        """Write below a savepoint."""
        yield

    def prepare(self):
        pass

    def commit(self):
        self._table.open.discard(self.id)

    def abort(self):
        self._table.open.discard(self.id)
        self._table.aborted.add(self.id)


class FakePagedSource:
    """`BatchSource` over a FakePagedTable, as `SnapshotSource` would be. The next `outages` calls fail; `calls` are
    the names of all, `acknowledged` counts those of `committed`."""

    def __init__(self, table, *, start=NOTHING, keys=None):
        self.table = table
        self.outages = 0
        self.calls = []
        self._start, self._keys = start, keys
        self._backend = None
        self._prev, self._cur, self._after, self._deferred = NOTHING, None, None, []

    def open(self, position):
        self._called("open")
        self._backend = self.table.backend
        if position is None:
            self._prev = self._start if self._start is not None else self.table.snapshot()
            self._cur = self._after = None
            self._deferred = []
            return self._position()
        self._prev = Snapshot.parse(position["prev"])
        self._cur = Snapshot.parse(position["cur"]) if "cur" in position else None
        self._after = position.get("after")
        self._deferred = list(position.get("deferred", ()))
        if (self._cur or self._prev).xmax > self.table.snapshot().xmax:
            raise CheckpointError("the checkpoint is ahead", next_step="a test's")
        return position

    def read(self, limit):
        self._called("read")
        self._connected()
        if self._deferred:
            ids, self._deferred = self._deferred, []
            return Page([self.table.rows[each][0] for each in ids], self._position(), more=True)
        cur = self._cur or self.table.snapshot()
        rows = [
            row
            for row, transaction in self.table.visible(cur)
            if not self._prev.sees(transaction)
            and row[0] > (self._after or 0)
            and (self._keys is None or row[2] in self._keys)
        ]
        if not rows and self._cur is None:
            return None
        if len(rows) > limit:
            self._cur, self._after = cur, rows[limit - 1][0]
        else:
            self._prev, self._cur, self._after = cur, None, None
        return Page(rows[:limit], self._position(), more=self._cur is not None)

    def load(self, ids):
        self._called("load")
        self._connected()
        return [self.table.rows[each][0] for each in ids if each in self.table.rows]

    def sent(self, rows):
        pass

    def give_back(self):
        pass

    def committed(self, failed=()):  # noqa: ARG002 - deferred records come again by their ids
        self._called("committed")

    def retention_bounds(self, position):
        return position["prev"], min(position.get("deferred", ()), default=None)

    def close(self):
        self._called("close", fails=False)
        self._backend = None

    def _called(self, name, *, fails=True):
        self.calls.append(name)
        if fails and self.outages:
            self.outages -= 1
            self._backend = None
            raise _unavailable()

    def _connected(self):
        if self._backend != self.table.backend:
            raise _unavailable()

    def _position(self):
        position = {"source": "fake", "prev": str(self._prev)}
        return position if self._cur is None else position | {"cur": str(self._cur), "after": self._after}


def _unavailable():
    return DatabaseUnavailable("a test's outage", next_step="wait")


class RealPagedTable:
    """The same handle on the native table."""

    def __init__(self, dsn, kind="snapshot", *, value_type="varchar", segment_size=10_000_000, ahead=4):
        self.dsn, self.kind = dsn, kind
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.outbox = OutboxTable.parse("outbox")
        self._array = "bytea[]" if value_type == "bytea" else "text[]"
        native = NativeTable(outbox=self.outbox, value_type=value_type, segment_size=segment_size, ahead=ahead)
        native.create(self.connection)
        self._transactions = []

    def begin(self):
        transaction = RealTransaction(self.dsn, self._array)
        self._transactions.append(transaction)
        return transaction

    def write(self, key, *values, topic="t"):
        return _write(self.connection, self._array, key, values, topic)

    def snapshot(self):
        return Snapshot.parse(self.connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0])

    def source(self, *, start=NOTHING, keys=None, dsn=None, kind=None):
        make = TransactionIdSource if (kind or self.kind) == "transaction_id" else SnapshotSource
        conditions = [] if keys is None else [sql.SQL("kafka_key = ANY({})").format(sql.Literal(list(keys)))]
        selection = Selection(table=self.outbox.identifier, conditions=conditions)
        return make(dsn or self.dsn, selection, subscription="tested", start=start)

    def lose(self, source):
        pid = source._connection.info.backend_pid
        self.connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        eventually(lambda: self.connection.execute(gone, (pid,)).fetchone()[0])

    def close(self):
        for transaction in self._transactions:
            transaction.close()
        self.connection.close()

    def drop(self):
        """Close, and leave the database as it was."""
        for transaction in self._transactions:
            transaction.close()
        self.connection.execute("DROP TABLE outbox, outbox_subscriptions, outbox_segments")
        self.connection.close()


class RealTransaction:
    def __init__(self, dsn, array="text[]"):
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._array = array
        self._prepared = ""
        self._connection.execute("BEGIN")
        (self.id,) = self._connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()

    def write(self, key, *values, topic="t"):
        return _write(self._connection, self._array, key, values, topic)

    @contextmanager
    def undone(self):
        self._connection.execute("SAVEPOINT undone")
        yield
        self._connection.execute("ROLLBACK TO undone")

    @contextmanager
    def kept(self):
        self._connection.execute("SAVEPOINT kept")
        yield
        self._connection.execute("RELEASE kept")

    def prepare(self):
        name = f"test-{uuid4()}"
        self._connection.execute(f"PREPARE TRANSACTION '{name}'")
        self._prepared = f" PREPARED '{name}'"

    def commit(self):
        self._end("COMMIT")

    def abort(self):
        self._end("ROLLBACK")

    def close(self):
        if not self._connection.closed:
            self.abort()

    def _end(self, how):
        self._connection.execute(how + self._prepared)
        self._connection.close()


def _write(connection, array, key, values, topic):
    statement = _INSERT.replace("%(values)s", f"%(values)s::{array}")
    given = {"topic": topic, "key": key, "values": list(values or ("v",))}
    return sorted(connection.execute(statement, given).fetchall())


def through_json(position):
    """Return what a position is after it was kept."""
    return json.loads(json.dumps(position))


def read_pages(source, records, limit=100, *, seconds=60):
    """Return the next pages that have rows, until so many records have come.

    Waits for them: a transaction elsewhere in the cluster, such as a vacuum, may hold the transaction_id source up.
    """
    pages, found = [], 0

    def enough():
        nonlocal found
        while found < records and (page := source.read(limit)) is not None:
            found += len(page.rows)
            pages.append(page)
        return found >= records

    eventually(enough, f"{records} records", seconds=seconds)
    assert found == records
    return pages


def read_rows(source, records, limit=100, *, seconds=60):
    """Return the next records."""
    return [row for page in read_pages(source, records, limit, seconds=seconds) for row in page.rows]


def assert_nothing(source):
    """Assert that there is no record to be had."""
    while (page := source.read(100)) is not None:
        assert page.rows == []
        assert page.more
