"""The backlog every measurement starts from: 200-byte values that do not compress to nothing, one header, many keys."""

from dataclasses import dataclass

import psycopg
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from harvest_lib.outbox import NativeTable, OutboxTable

KEYS = 10_000
PARTITIONS = 8
VALUE_BYTES = 200

_DROP = "DROP TABLE IF EXISTS outbox, outbox_parked, outbox_subscriptions, outbox_segments, outbox_parked_ids"
_TRANSACTION_RECORDS = 10_000

_FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, 'key-' || (random() * %(keys)s)::int,
       left(repeat(md5(random()::text), 7), %(bytes)s), '{Seq}', ARRAY[g::text]
FROM generate_series(1, %(records)s) g
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The Postgres database and the Kafka topic that a benchmark uses."""

    dsn: str
    bootstrap_servers: str
    topic: str

    def yaml(self, **settings: object) -> str:
        """Write a configuration with the default limits and `settings`. Holds the password."""
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": self.bootstrap_servers},
            "leaderGroupID": f"bench-{self.topic}",
            "dataSource": self.dsn,
            "delivery": "barrier",
            "leadership": "neli",
            **settings,
        }
        return yaml.safe_dump({"harvest": harvest})

    def fill(self, records: int, *, keys: int = KEYS) -> None:
        """Create the outbox again with so many records of so many keys; 0 stands for one."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(_DROP)
            OutboxTable.parse("outbox").create(connection)
            connection.execute("SELECT setseed(0.5)")
            connection.execute(_FILL, self._values(records, keys))
            connection.execute("VACUUM ANALYZE outbox")
            connection.execute("CHECKPOINT")  # which the first one measured would otherwise pay for

    def make_native(self) -> None:
        """Create the outbox again, empty, with the columns that the snapshot source needs."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(_DROP)
            NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)

    def insert(
        self, records: int, *, keys: int = KEYS, connection: psycopg.Connection[tuple[object, ...]] | None = None
    ) -> None:
        """Add records; 0 keys stand for one. On a connection that is given they are one transaction, left open."""
        if connection is not None:
            connection.execute(_FILL, self._values(records, keys))
            return
        with psycopg.connect(self.dsn, autocommit=True) as own:
            own.execute("SET synchronous_commit = off")
            for first in range(0, records, _TRANSACTION_RECORDS):
                own.execute(_FILL, self._values(min(_TRANSACTION_RECORDS, records - first), keys))

    def settle(self, *, analyze: bool = True) -> None:
        """Let the server do now what it would otherwise do while something is being measured."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            if analyze:
                connection.execute("VACUUM ANALYZE outbox")
            connection.execute("CHECKPOINT")

    def forget(self) -> None:
        """Let every subscription start again from the beginning."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE outbox_subscriptions")

    def _values(self, records: int, keys: int) -> dict[str, object]:
        return {"topic": self.topic, "keys": keys, "bytes": VALUE_BYTES, "records": records}

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(self.topic, PARTITIONS)])[self.topic].result(30)
