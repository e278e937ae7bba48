"""Shards whose state is in SQLite: stores of one shard on machines of their own, and what is done with them."""

from confluent_kafka import OFFSET_BEGINNING

from harvest_lib.consume.checkpoint import Checkpoint, ShardId
from harvest_lib.consume.sqlite_store import SqliteStore

SHARD = ShardId("counts", "orders", 0)


def checkpoint(offset=OFFSET_BEGINNING, shard=SHARD, **named):
    """Return a checkpoint of the shard."""
    return Checkpoint(shard=shard, offset=offset, **named)


class Machines:
    """Makes a store of the shard on a new machine each time it is called."""

    def __init__(self, settings, log, folder):
        self._settings, self._log, self._folder = settings, log, folder
        self._made = []

    def __call__(self, shard=SHARD, **named):
        folder = self._folder / f"machine-{len(self._made)}"
        self._made.append(SqliteStore(folder, self._settings, shard, **{"log": self._log, **named}))
        return self._made[-1]

    def close(self):
        for store in self._made:
            store.close()


def change(store, *statements, offset=0):
    """Commit a transaction of these statements."""
    connection = store.begin()
    for statement in statements:
        connection.execute(statement)
    assert store.commit(checkpoint(offset))


def asked(store, query):
    """Return the rows of a query."""
    rows = store.begin().execute(query).fetchall()
    store.rollback()
    return rows
