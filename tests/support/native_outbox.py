"""A native outbox to harvest, and a subscription's row beside it."""

from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row
from support.outbox import Outbox

from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords


@dataclass
class NativeOutbox(Outbox):
    """`Outbox` with the native table."""

    def __post_init__(self):
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.name = OutboxTable.parse(self.table)
        NativeTable(outbox=self.name).create(self.connection)
        ParkedRecords(self.name).create(self.connection)

    def reconnect(self):
        """Connect again: the test's own connection died with the server."""
        self.connection.close()
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def ids(self):
        """Return the ids of all records, ascending."""
        return [record_id for (record_id,) in self.connection.execute("SELECT id FROM outbox ORDER BY id")]

    def subscription(self, name="default", shard=0):
        """Return the row of a subscription by column, and the version of that row, or None."""
        return (
            self.connection.cursor(row_factory=dict_row)
            .execute(
                "SELECT *, xmin::text AS version FROM outbox_subscriptions WHERE subscription = %s AND shard = %s",
                (name, shard),
            )
            .fetchone()
        )
