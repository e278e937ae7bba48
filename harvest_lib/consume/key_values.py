"""State for applications without tables of their own: a JSON value per key, in Postgres.

Keys belong to a shard, and only the shard's owner changes them. A single statement writes all changed values at the end
of a transaction.
"""

from collections.abc import Iterable
from typing import Any

from psycopg import Connection, sql
from psycopg.types.json import Jsonb

from harvest_lib.consume.checkpoint import Checkpoint, ShardId
from harvest_lib.consume.postgres_store import LOCK_DDL, PostgresStore, refusing
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.table_names import name_parts
from harvest_lib.postgres.translation import translated

_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
  consumer  TEXT NOT NULL,
  topic     TEXT NOT NULL,
  partition INT NOT NULL,
  key       TEXT NOT NULL,
  value     JSONB NOT NULL,
  PRIMARY KEY (consumer, topic, partition, key)
)"""
_READ = """
SELECT key, value FROM {table} WHERE consumer = %s AND topic = %s AND partition = %s AND key = ANY(%s)
"""
_WRITE = """
INSERT INTO {table} SELECT %s, %s, %s, key, value FROM unnest(%s::text[], %s::jsonb[]) AS changed (key, value)
ON CONFLICT (consumer, topic, partition, key) DO UPDATE SET value = excluded.value
"""
_DELETE = """
DELETE FROM {table} WHERE consumer = %s AND topic = %s AND partition = %s AND key = ANY(%s)
"""


def create_key_values(dsn: str, table: str = "consumers") -> None:
    """Create the table of values, `<table>_state`, unless it exists."""
    with connect(dsn) as connection, translated(), connection.transaction():
        connection.execute(LOCK_DDL)
        connection.execute(_named(_CREATE, table))


class KeyValues:
    """Values that a transaction reads and changes. Each key is read once, and changes are written at the end."""

    def __init__(self, connection: "Connection[Any]", shard: ShardId, table: str) -> None:
        """`connection` is the connection of the transaction. The user may change other tables through it too."""
        self.connection = connection
        self._shard, self._table = shard, table
        self._values: dict[str, Any] = {}
        self._changed: set[str] = set()

    def load(self, keys: Iterable[str]) -> None:
        """Read the values of several keys in a single statement, for later calls of `get`."""
        wanted = [key for key in keys if key not in self._values]
        if not wanted:
            return
        found = dict(self.connection.execute(_named(_READ, self._table), (*self._shard, wanted)).fetchall())
        self._values |= {key: found.get(key) for key in wanted}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key as this transaction sees it. To change a value, call `put`."""
        self.load((key,))
        value = self._values[key]
        return default if value is None else value

    def put(self, key: str, value: Any) -> None:
        """Set the value of a key. JSON must be able to hold the value; None deletes the key."""
        self._values[key] = value
        self._changed.add(key)

    def write(self) -> None:
        """Write the changes in the order of the keys, so that two writers of the same rows cannot deadlock."""
        changed = {key: self._values[key] for key in sorted(self._changed)}
        kept = {key: Jsonb(value) for key, value in changed.items() if value is not None}
        gone = [key for key, value in changed.items() if value is None]
        if kept:
            values = (*self._shard, list(kept), list(kept.values()))
            self.connection.execute(_named(_WRITE, self._table), values)
        if gone:
            self.connection.execute(_named(_DELETE, self._table), (*self._shard, gone))
        self._changed.clear()


class KeyValueStore(PostgresStore):
    """`Store` whose state is `KeyValues`."""

    def __init__(self, dsn: str, shard: ShardId, *, table: str = "consumers") -> None:
        super().__init__(dsn, shard, table=table)
        self._state_table = table
        self._values: KeyValues | None = None

    def begin(self) -> KeyValues:
        """Begin a transaction, and return the `KeyValues` for it."""
        self._values = KeyValues(super().begin(), self.shard, self._state_table)
        return self._values

    def flush(self) -> None:
        """Write the changed values. Raises StateRefused for a value that JSON or Postgres cannot hold."""
        if self._values is not None:
            with translated(), refusing():
                self._values.write()

    def commit(self, checkpoint: Checkpoint) -> bool:
        """Write the changed values, and commit them with the checkpoint. Return False if the owner was fenced."""
        self.flush()
        return super().commit(checkpoint)


def _named(statement: str, table: str) -> sql.Composed:
    return sql.SQL(statement).format(table=sql.Identifier(*name_parts(table, "_state")))
