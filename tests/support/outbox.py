"""An outbox to harvest and the topic it goes to: fill it, read it back, and say what order it is in."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from psycopg import sql
from support.least import limited
from support.markers import await_markers
from support.waiting import eventually

from harvest_lib.config import HarvestConfig
from harvest_lib.consume import Message, Sequencer
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.record.header import HEADER_NAME, unpack
from harvest_lib.sequencing.message_id import HEADER_NAME as MESSAGE_ID

_MARKERS_SECONDS = 15  # how long a marker may take on a busy machine

_FILL = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, 'key-' || (g %% %(keys)s), repeat('x', %(bytes)s), '{{Seq}}', ARRAY[g::text]
FROM generate_series(1, %(records)s) g
"""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """One record as it stands in Kafka."""

    partition: int
    offset: int
    key: str
    value: str | None
    headers: list
    outbox_id: int | None = None
    leader_id: object = None
    sent_at: float = 0.0


@dataclass
class Outbox:
    """A table made for one test, with a topic."""

    dsn: str
    topic: str
    table: str = "outbox"
    connection: psycopg.Connection = field(init=False)

    def __post_init__(self):
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.name = OutboxTable.parse(self.table)
        self.name.create(self.connection)
        ParkedRecords(self.name).create(self.connection)

    def fill(self, records, *, keys=10, value_bytes=20):
        self.connection.execute(
            sql.SQL(_FILL).format(table=sql.SQL(self.name.identifier.as_string(None).replace("%", "%%"))),
            {"topic": self.topic, "keys": keys, "bytes": value_bytes, "records": records},
        )

    def count(self):
        return self.connection.execute(sql.SQL("SELECT count(*) FROM {}").format(self.name.identifier)).fetchone()[0]

    def leaders(self):
        statement = sql.SQL("SELECT DISTINCT leader_id FROM {} WHERE leader_id IS NOT NULL").format(
            self.name.identifier
        )
        return {leader for (leader,) in self.connection.execute(statement)}

    def close(self):
        self.connection.close()


def harvest_config(dsn, bootstrap_servers, group, *, leadership="solo", **settings):
    """A configuration that delivers as goharvest does; `settings` override.

    Alone by default, where an election is not the subject; else the timeouts are short enough to wait for.
    """
    soon, session = (60.0, 90.0) if leadership == "solo" else (1.5, 3.0)
    limits = {"heartbeat_timeout_seconds": soon, "io_error_backoff_seconds": 0.1, **settings.pop("limits", {})}
    kafka = {"bootstrap.servers": bootstrap_servers, **settings.pop("base_kafka_config", {})}
    named = {
        "data_source": dsn,
        "base_kafka_config": kafka,
        "leader_group_id": group,
        "limits": limits,
        "session_timeout_seconds": session,
        "delivery": "barrier",
        "leadership": leadership,
        **settings,
    }
    config = HarvestConfig(**named)
    return HarvestConfig(**{**named, **changes}) if (changes := limited(config)) else config


def _end(consumer, partition, patience_seconds=60):
    """The offset that the partition ends at; one that has no leader for a while, as after a crash, is waited for."""

    def answered():
        with suppress(KafkaException):
            return consumer.get_watermark_offsets(partition, 60)
        return None

    _, end = eventually(answered, f"{partition} has a leader", seconds=patience_seconds)
    return end


def read_topic(bootstrap_servers, topic, *, isolation="read_uncommitted", **client):
    """Read a topic to its present end; records in offset order per partition. `client` are more of its settings.

    Where only what is committed is read, of messages with ids only those come that are acknowledged. The markers of
    transactions that have committed are waited for; one that stays open ends the reading where it began.
    """
    if isolation == "read_committed":
        with suppress(AssertionError, KafkaException):
            await_markers(bootstrap_servers, topic, seconds=_MARKERS_SECONDS, **client)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            **client,
        }
    )
    partitions = [
        TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, 60).topics[topic].partitions
    ]
    ends = {partition.partition: _end(consumer, partition) for partition in partitions}
    consumer.assign(partitions)
    messages = []
    try:
        while any(max(0, position.offset) < ends[position.partition] for position in consumer.position(partitions)):
            messages += [message for message in consumer.consume(1000, timeout=0.1) if not message.error()]
    finally:
        consumer.close()
    if isolation == "read_committed":
        messages = _acknowledged(messages)
    return sorted(map(delivered, messages), key=lambda record: (record.partition, record.offset))


def _acknowledged(messages):
    """Return those messages that have no id, or are acknowledged, once each."""
    sequencers = defaultdict(partial(Sequencer, ring=len(messages) + 1))
    found = []
    for message in messages:
        message_id = next((value for name, value in message.headers() or [] if name == MESSAGE_ID), None)
        for committed in sequencers[message.partition()].take([Message(message.offset(), message_id, message)]):
            found += [each.record for each in committed]
    return found


def delivered(message):
    """Return what a message of the client's says."""
    headers, value = message.headers() or [], message.value()
    stamped = dict(headers).get(HEADER_NAME)
    leader_id, outbox_id = unpack(stamped) if stamped else (None, None)
    return Delivered(
        partition=message.partition(),
        offset=message.offset(),
        key=(message.key() or b"").decode(),
        value=None if value is None else value.decode(),
        headers=[(name, content) for name, content in headers if name not in {HEADER_NAME, MESSAGE_ID}],
        outbox_id=outbox_id,
        leader_id=leader_id,
        sent_at=message.timestamp()[1] / 1000,
    )


def steps_back(records):
    """Return how often a key's outbox id is lower than the one before it in the log, repeats included."""
    return len(steps(records))


def steps(records):
    """Return each record of a key that is lower than the one before it in the log, with that one."""
    last, found = {}, []
    for record in records:
        before = last.get(record.key)
        if before is not None and record.outbox_id < before.outbox_id:
            found.append((before, record))
        last[record.key] = record
    return found


def check_runs(delivered):
    """A key steps back only where a leader id begins, and each leader id's records of a key are one run without gap."""
    by_key = {}
    for record in delivered:
        by_key.setdefault(record.key, []).append(record)
    for key, of_key in by_key.items():
        order = {outbox_id: place for place, outbox_id in enumerate(sorted({record.outbox_id for record in of_key}))}
        runs = [(leader, [order[r.outbox_id] for r in run]) for leader, run in groupby(of_key, lambda r: r.leader_id)]
        assert len({leader for leader, _ in runs}) == len(runs), f"{key}: a leader id comes again"
        reached = 0
        for _, places in runs:
            assert places == list(range(places[0], places[0] + len(places))), f"{key}: a gap in {places}"
            assert places[0] <= reached, f"{key}: {reached} is skipped"
            reached = max(reached, places[-1] + 1)
