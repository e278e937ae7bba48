"""A shard that counts a topic's messages into the table `counts` of a real Postgres."""

import time

import psycopg
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from harvest_lib.consume import (
    Clock,
    PostgresStore,
    Publisher,
    Shard,
    ShardId,
    ShardLimits,
    create_key_values,
    create_tables,
    new_producer_id,
    read_committed,
)


class Counted:
    """The topic, the tables, and shards over them; publishers are closed at the end."""

    def __init__(self, dsn, settings, topic):
        self.dsn, self.settings, self.topic = dsn, settings, topic
        self.place = ShardId("counts", topic, 0)
        self._publishers = []
        create_tables(dsn)
        create_key_values(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")

    def store(self):
        return PostgresStore(self.dsn, self.place)

    def shard(self, application, own_store=None, topic_id="", **limits):
        return Shard(
            application,
            own_store or self.store(),
            shard=self.place,
            topic_id=topic_id,
            read=lambda sequencer: read_committed(self.settings, self.topic, 0, sequencer=sequencer),
            publisher=self._new_publisher,
            limits=ShardLimits(**limits),
        )

    def publisher(self):
        made = self._new_publisher()
        self._publishers.append(made)
        return made

    def _new_publisher(self):
        return Publisher(self.settings, producer_id=new_producer_id(), clock=Clock(time.time_ns))

    def counts(self):
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute("SELECT key, n FROM counts").fetchall())

    def parked(self):
        with psycopg.connect(self.dsn) as connection:
            return connection.execute('SELECT "offset", key, reason FROM consumers_parked').fetchall()

    def write(self, keys):
        """Write a message of each key, without an id."""
        producer = Producer(self.settings)
        for key in keys:
            producer.produce(self.topic, b"v", key=key)
        assert producer.flush(60) == 0

    def delete_before(self, offset):
        """Take away what retention would, up to an offset."""
        admin = AdminClient(self.settings)
        for deleted in admin.delete_records([TopicPartition(self.topic, 0, offset)]).values():
            deleted.result(60)

    def close(self):
        for publisher in self._publishers:
            publisher.close()
