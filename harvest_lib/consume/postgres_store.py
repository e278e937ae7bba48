"""`Store` in Postgres: the user's own tables, and the shard's checkpoint beside them.

An owner that is frozen in a transaction holds the locks of that transaction, until Postgres ends the transaction after
IDLE_SECONDS.

The connection has no `tcp_user_timeout`, at neither end (WAITS_FOR_CLIENT): a user's function may send more than the
buffers hold while the server waits for a lock, or may be slow to read a result.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from harvest_lib.consume.causes import follows_what_passes, passes
from harvest_lib.consume.checkpoint import Checkpoint, ShardId
from harvest_lib.consume.store import StateRefused, headers_as_json
from harvest_lib.errors import DatabaseError
from harvest_lib.postgres.database import WAITS_FOR_CLIENT, connect
from harvest_lib.postgres.table_names import name_parts
from harvest_lib.postgres.translation import translated
from harvest_lib.sequencing.batch import Message

IDLE_SECONDS = 120
"""Longest time without a statement in a transaction. A call of the user's function for a message may not take longer.
"""

_TELL_WAITS = """
SELECT set_config('lock_timeout', (statement.setting::bigint / 2)::text, false)
FROM pg_settings AS statement, pg_settings AS lock
WHERE statement.name = 'statement_timeout' AND statement.setting::bigint > 1 AND lock.name = 'lock_timeout'
  AND (lock.setting = '0' OR lock.setting::bigint > statement.setting::bigint / 2)
"""
"""For a role with a `statement_timeout`. A wait for a lock then ends before that timeout, with another error, so that
the wait can be distinguished from a slow statement."""
_SESSION = """
SELECT current_user::text, array_agg(name || '=' || setting ORDER BY name) FROM pg_settings WHERE source = 'session'
"""
_SCHEMA = """
SELECT n.nspname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_IN_TRANSACTION = int(TransactionStatus.INTRANS)
_CREATE = (
    """
CREATE TABLE IF NOT EXISTS {table} (
  consumer   TEXT NOT NULL,
  topic      TEXT NOT NULL,
  partition  INT NOT NULL,
  fence      BIGINT NOT NULL,
  checkpoint JSONB NOT NULL,
  updated_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, topic, partition)
)""",
    """
CREATE TABLE IF NOT EXISTS {parked} (
  consumer  TEXT NOT NULL,
  topic     TEXT NOT NULL,
  partition INT NOT NULL,
  "offset"  BIGINT NOT NULL,
  key       BYTEA,
  value     BYTEA,
  headers   JSONB NOT NULL,
  reason    TEXT NOT NULL,
  parked_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, topic, partition, "offset")
)""",
)
LOCK_DDL = "SELECT pg_advisory_xact_lock(hashtextextended('harvest consumers', 0))"
_FENCE = """
INSERT INTO {table} (consumer, topic, partition, fence, checkpoint) VALUES (%s, %s, %s, 1, %s)
ON CONFLICT (consumer, topic, partition) DO UPDATE SET fence = {table}.fence + 1, updated_at = clock_timestamp()
RETURNING fence, checkpoint
"""
_COMMIT = """
UPDATE {table} SET checkpoint = %s, updated_at = clock_timestamp()
WHERE consumer = %s AND topic = %s AND partition = %s AND fence = %s
  AND pg_catalog.set_config('synchronous_commit', 'on', true) = 'on'
"""
"""The commit is durable even if a user's function has changed `synchronous_commit`. It has to be durable because
published messages are acknowledged after it."""
_PARK = """
INSERT INTO {parked} VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (consumer, topic, partition, "offset") DO UPDATE
SET key = excluded.key, value = excluded.value, headers = excluded.headers, reason = excluded.reason,
    parked_at = excluded.parked_at
"""
_OF_THE_STATE = ("22", "23", "44", "54", "P0")
"""Classes of SQLSTATE for errors of the user's data: data, integrity, a view's check, limits, a trigger."""


def create_tables(dsn: str, table: str = "consumers") -> None:
    """Create the table of checkpoints, and `<table>_parked` for parked messages, unless they exist."""
    with connect(dsn) as connection, translated(), connection.transaction():
        connection.execute(LOCK_DDL)
        for statement in _CREATE:
            connection.execute(_named(statement, name_parts(table)))


class _Lent(psycopg.Connection[Any]):
    """A connection for the user's functions. They can neither end its transaction nor close it, not even by `with`."""

    def commit(self) -> None:
        raise _not_theirs("commit")

    def rollback(self) -> None:
        raise _not_theirs("rollback")

    def close(self) -> None:
        raise _not_theirs("close")


def _not_theirs(name: str) -> psycopg.ProgrammingError:
    return psycopg.ProgrammingError(
        f"{name}() is not for a function of a consumer, whose transaction and connection belong to the shard; "
        "connection.transaction() makes a savepoint"
    )


class PostgresStore:
    """`Store` in Postgres: the user's functions change tables through the connection that `begin` returns.

    That connection has an open transaction, and refuses `commit`, `rollback` and `close`. Do not send COMMIT or
    ROLLBACK through it.
    """

    def __init__(self, dsn: str, shard: ShardId, *, table: str = "consumers") -> None:
        """`table` is the table that `create_tables` made: `name` or `schema.name`."""
        self.shard = shard
        self._dsn = dsn
        self._table = table
        self._statements: dict[str, str] = {}
        self._open: psycopg.Connection[Any] | None = None
        self._fence = 0
        self._session: tuple[object, ...] | None = None

    def restore(self) -> Checkpoint:
        self._connect()
        with translated(), self.connection.transaction():
            table = self._placed()
            self._statements = {each: _named(each, table).as_string(None) for each in (_FENCE, _COMMIT, _PARK)}
            first = Jsonb(Checkpoint(shard=self.shard).to_json())
            row = self.connection.execute(self._statements[_FENCE], (*self.shard, first)).fetchone()
        if row is None:
            raise DatabaseError(
                f"the checkpoint of {self.shard} cannot be written",
                evidence="INSERT … RETURNING gave no row",
                next_step="check the table of consumers for triggers and rules: they must not suppress its rows",
            )
        self._fence, kept = row
        return Checkpoint.of_json(kept)

    def _connect(self) -> None:
        self.close()
        self._open = connection = connect(self._dsn, WAITS_FOR_CLIENT, tcp_user_timeout=0)
        connection.__class__ = _Lent
        with translated():
            self.connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
            self.connection.execute(_TELL_WAITS)
            self._session = self.connection.execute(_SESSION).fetchone()

    def _placed(self) -> tuple[str, str]:
        """Return the schema and the name of the table of checkpoints. The schema is needed because a user's function
        may set another `search_path`."""
        parts = name_parts(self._table)
        name = sql.Identifier(*parts).as_string(None)
        row = self.connection.execute(_SCHEMA, (name,)).fetchone()
        if row is None:
            raise DatabaseError(
                f"the consumer's table {self._table!r} is not there",
                evidence=f"to_regclass finds no {name}",
                next_step="make it with `create_tables`, or correct `table`, or the `search_path` of the role",
            )
        return str(row[0]), parts[-1]

    @property
    def connection(self) -> "psycopg.Connection[Any]":
        """The connection that `restore` opened."""
        assert self._open is not None, "restore comes first"  # noqa: S101
        return self._open

    def begin(self) -> Any:
        with translated():
            self.connection.execute("BEGIN")
        return self.connection

    @property
    def is_open(self) -> bool:
        return self.connection.pgconn.transaction_status == _IN_TRANSACTION  # read for each message

    def touch(self) -> None:
        with translated():
            self.connection.execute("SELECT")

    def will_pass(self, error: BaseException) -> bool:
        return passes(error) or (not self.is_open and follows_what_passes(error))

    def flush(self) -> None:
        """Do nothing, because the user's statements change the tables at once."""

    def commit(self, checkpoint: Checkpoint) -> bool:
        with translated():
            kept = self.connection.execute(
                self._statements[_COMMIT], (Jsonb(checkpoint.to_json()), *self.shard, self._fence)
            )
            is_ours = kept.rowcount == 1
            with refusing():  # deferred constraints
                self.connection.execute("COMMIT" if is_ours else "ROLLBACK")
        return is_ours

    def park(self, message: Message, reason: str) -> None:
        record = message.record
        values = (*self.shard, message.offset, record.key(), record.value(), Jsonb(headers_as_json(record)), reason)
        with translated():
            self.connection.execute(self._statements[_PARK], values)

    def rollback(self) -> None:
        """Roll the transaction back. Open a new connection if the user's functions left the present connection in the
        middle of a statement, or changed settings of its session: the settings may affect later messages. The fence
        stays the same, and still shows whether this process owns the shard."""
        with suppress(psycopg.Error):
            self.connection.execute("ROLLBACK")
            if self.connection.execute(_SESSION).fetchone() == self._session:
                return
        if self.connection.broken:
            with translated():
                self.connection.execute("ROLLBACK")  # raises
        self._connect()

    def close(self) -> None:
        if self._open is not None:
            psycopg.Connection.close(self._open)
            self._open = None


@contextmanager
def refusing() -> Iterator[None]:
    """Raise StateRefused in place of an error of the user's data. Errors of the store itself pass unchanged."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate
        is_the_clients = state is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
        if is_the_clients or (state is not None and state.startswith(_OF_THE_STATE)):
            raise StateRefused(error) from error
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StateRefused(error) from error


def _named(statement: str, parts: Sequence[str]) -> sql.Composed:
    parked = (*parts[:-1], f"{parts[-1]}_parked")
    return sql.SQL(statement).format(table=sql.Identifier(*parts), parked=sql.Identifier(*parked))
