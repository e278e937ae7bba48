"""The backlog every measurement starts from: 200-byte values that do not compress to nothing, one header, many keys."""

from dataclasses import dataclass

import psycopg
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from harvest_lib.outbox import OutboxTable

KEYS = 10_000
PARTITIONS = 8
VALUE_BYTES = 200

_FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, 'key-' || (random() * %(keys)s)::int,
       left(repeat(md5(random()::text), 7), %(bytes)s), '{Seq}', ARRAY[g::text]
FROM generate_series(1, %(records)s) g
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where the measurements take place."""

    dsn: str
    bootstrap_servers: str
    topic: str

    def yaml(self) -> str:
        """Write a configuration with the default limits. Holds the password."""
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": self.bootstrap_servers},
            "leaderGroupID": f"bench-{self.topic}",
            "dataSource": self.dsn,
        }
        return yaml.safe_dump({"harvest": harvest})

    def fill(self, records: int, *, keys: int = KEYS) -> None:
        """Make the outbox anew with so many records of so many keys; 0 stands for one."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS outbox, outbox_parked, outbox_subscriptions, outbox_segments")
            OutboxTable.parse("outbox").create(connection)
            connection.execute("SELECT setseed(0.5)")
            values = {"topic": self.topic, "keys": keys, "bytes": VALUE_BYTES, "records": records}
            connection.execute(_FILL, values)
            connection.execute("VACUUM ANALYZE outbox")
            connection.execute("CHECKPOINT")  # which the first one measured would otherwise pay for

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(self.topic, PARTITIONS)])[self.topic].result(30)
