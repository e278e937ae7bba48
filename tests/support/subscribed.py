"""A native outbox with subscriptions, and harvesters of it, for tests."""

from contextlib import contextmanager

import psycopg
from support.outbox import Outbox, harvest_config, read_topic

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable, append
from harvest_lib.record import OutboxRecord
from harvest_lib.source import Selection
from harvest_lib.subscriptions.admin import Subscriptions


class Subscribed(Outbox):
    """An empty native table, its topic, and who reads it."""

    def __init__(self, dsn, topic, servers, group, table="outbox"):
        self.servers, self.group = servers, group
        super().__init__(dsn, topic, table)
        self.subscriptions = Subscriptions(self.connection, self.name, Selection(table=self.name.identifier))

    def __post_init__(self):
        # Before the goharvest table, which is then left alone.
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            NativeTable(outbox=OutboxTable.parse(self.table)).create(connection)
        super().__post_init__()

    def harvest(self, **settings):
        settings = {"leadership": "solo", "source": "snapshot", **settings}
        return Harvest(harvest_config(self.dsn, self.servers, self.group, **settings))

    @contextmanager
    def running(self, **settings):
        with self.harvest(**settings) as harvest:
            yield harvest

    @contextmanager
    def made(self, **settings):
        """Yield a harvester that is not started, and that may die of an error; it is stopped in the end."""
        harvest = self.harvest(**settings)
        try:
            yield harvest
        finally:
            harvest.stop()

    def write(self, *keys):
        append(self.connection, [OutboxRecord(topic=self.topic, key=key, value="v") for key in keys])

    def committed(self):
        """Return the ids that readers of committed records see, in order."""
        return sorted(self.arrived(isolation="read_committed"))

    def arrived(self, **options):
        return [record.outbox_id for record in read_topic(self.servers, self.topic, **options)]

    def shard(self, name="default", number=0):
        return self.subscriptions.get(name)[number]

    def snapshot(self):
        return self.connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0]
