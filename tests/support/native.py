"""A native outbox for tests: small segments, subscriptions that have seen what they say."""

import psycopg
from psycopg import sql

from harvest_lib.outbox import NativeTable, OutboxTable, append
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.outbox.segments import Segments, drop_passed
from harvest_lib.postgres.database import in_statement
from harvest_lib.record import OutboxRecord


class Native:
    """A native table made for one test."""

    def __init__(self, dsn, *, name="outbox", size=10, ahead=3, value_type="varchar"):
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.table = OutboxTable.parse(name)
        NativeTable(outbox=self.table, segment_size=size, ahead=ahead, value_type=value_type).create(self.connection)
        self.parked = ParkedRecords(self.table)
        self.parked.create(self.connection)
        self.segments = Segments(self.table)

    def write(self, records, connection=None):
        append(connection or self.connection, [OutboxRecord(topic="t", key="k", value="v")] * records, table=str(self))

    def snapshot(self):
        return self.connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0]

    def subscribe(self, low_watermark, *, name="s", shard=0, retention_hold=None):
        self.connection.execute(
            sql.SQL(
                "INSERT INTO {} (subscription, shard, shards, source, low_watermark, retention_hold) "
                "VALUES (%s, %s, 1, 'snapshot', %s, %s) "
                "ON CONFLICT (subscription, shard) DO UPDATE SET low_watermark = excluded.low_watermark, "
                "retention_hold = excluded.retention_hold"
            ).format(in_statement(self.table.subscriptions.identifier)),
            (name, shard, low_watermark, retention_hold),
        )

    def names(self):
        return [each.name for each in self.segments.read(self.connection)]

    def bounds(self):
        return [(each.lower, each.upper) for each in self.segments.read(self.connection)]

    def closed(self):
        return [each.name for each in self.segments.close_passed(self.connection) if each.closed_at]

    def unseen(self, seen=None):
        seen = seen or self.snapshot()
        every = self.segments.read(self.connection)
        return [each.name for each in every if self.segments.has_unseen(self.connection, each, seen)]

    def drop_passed(self, seconds=0.0, **options):
        return drop_passed(self.connection, self.table, keep_seconds=seconds, **options)

    def count(self):
        return self.connection.execute(sql.SQL("SELECT count(*) FROM {}").format(self.table.identifier)).fetchone()[0]

    def push(self, next_id):
        sequence = self.segments.sequence(self.connection).identifier.as_string(None)
        self.connection.execute("SELECT setval(%s::regclass, %s, false)", (sequence, next_id))

    def __str__(self):
        return ".".join(self.table.parts)
