"""Outboxes that are audited again and again, and what makes an anomaly in their topics."""

from collections import Counter
from dataclasses import asdict
from itertools import count

from confluent_kafka import Producer
from support.outbox import harvest_config, read_topic

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord
from harvest_lib.record.header import HEADER_NAME, stamp
from harvest_lib.spark.audit import audit

KEYS, RECORDS = 3, 30

BUSINESS = """
CREATE TABLE flights (flight_id bigserial PRIMARY KEY, tail_number text, batch text NOT NULL);
CREATE TABLE flights_batches (
    batch text PRIMARY KEY, rows bigint, promoted_at timestamptz DEFAULT clock_timestamp());
"""
PROMOTE = """
WITH inserted AS (
    INSERT INTO flights (tail_number, batch) SELECT 'N' || g %% 3, %(batch)s FROM generate_series(1, %(rows)s) g
    RETURNING flight_id, tail_number)
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, tail_number, '{}', ARRAY['batch', 'event-id'], ARRAY[%(batch)s, flight_id::text]
FROM inserted ORDER BY flight_id
"""


class Audited:
    """An outbox that is audited again and again; each audit tells which numbers have changed since the last."""

    def __init__(self, outbox, servers):
        self.outbox, self.servers = outbox, servers
        self.numbers = Counter()
        self.producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})

    def audit(self, **how):
        how = {"dsn": self.outbox.dsn, "kafka": {"bootstrap.servers": self.servers}, **how}
        return audit(topics=[self.outbox.topic], **how)

    def changed(self):
        found = {
            name: value
            for name, value in asdict(self.audit()).items()
            if isinstance(value, int) and not name.startswith("delay")
        }
        changed = {name: value - self.numbers[name] for name, value in found.items() if value != self.numbers[name]}
        self.numbers = Counter(found)
        return changed

    def deliver(self, records=RECORDS, **settings):
        """Write records of a few keys and have them harvested."""
        self.outbox.fill(records, keys=KEYS)
        self.outbox.harvest(**{"delivery": "pipelined", **settings}).drain(60)

    def log(self):
        return read_topic(self.servers, self.outbox.topic, isolation="read_committed")

    def produce(self, like, *, outbox_id=None, leader=None, headers=None, header=True, value=None):
        """Send a record to where one like it is; by its leader and of its value, unless others are named."""
        outbox_id = like.outbox_id if outbox_id is None else outbox_id
        own = [(HEADER_NAME, stamp(leader or like.leader_id)(outbox_id))] if header is True else header
        self.producer.produce(
            self.outbox.topic,
            like.value if value is None else value,
            like.key,
            like.partition,
            headers=[*(like.headers if headers is None else headers), *own],
        )
        self.producer.flush()

    def findings(self, table):
        return self.outbox.connection.execute(f"SELECT * FROM harvest_audit.{table}").fetchall()  # noqa: S608


class Purged(Audited):
    """One whose rows are purged as they are harvested: a ledger and a business table say what was committed."""

    def __init__(self, outbox, servers, group):
        super().__init__(outbox, servers)
        outbox.connection.execute(BUSINESS)
        self.config = harvest_config(outbox.dsn, servers, group, leadership="solo", source="mark")
        self.batches = count(1)

    def promote(self, rows):
        connection = self.outbox.connection
        values = {"batch": f"b{next(self.batches)}", "rows": rows, "topic": self.outbox.topic}
        with connection.transaction():
            connection.execute(PROMOTE, values)
            connection.execute("INSERT INTO flights_batches (batch, rows) VALUES (%s, %s)", (values["batch"], rows))

    def harvest(self):
        Harvest(self.config).drain(60)


def write(outbox, *keys):
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key=key, value="v") for key in keys])


def of_one_key(log):
    """The records of the key that has most of them, in order."""
    ((key, _),) = Counter(record.key for record in log).most_common(1)
    return [record for record in log if record.key == key]
