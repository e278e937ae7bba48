"""Limits reached under a pool: those of its database, a topic's retention, its partitions, a certificate."""

import os
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from support.consuming import Running
from support.waiting import eventually
from trustme import CA

from harvest_lib.consume import Consumer, PostgresStore, ShardLimits, create_tables
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.kafka_topics import create_topic
from harvest_lib.local_stack.jars import kafka_jars, resolve
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.telemetry.server import Listener
from infra.chaos.commands import harvest

BULK = "bulk"
WRITE_BULK = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %s, 'drill', (
    SELECT format('{"event": "drill", "more": "%%s"}', string_agg(md5(n::text || m::text), ''))
    FROM generate_series(1, 2000) m
)
FROM generate_series(1, 500) n
"""
CLOSED_LONG_AGO = "UPDATE outbox_segments SET closed_at = closed_at - interval '2 hours' WHERE closed_at IS NOT NULL"
LEAST_BULK_BYTES = 10_000_000
KAFKA_CONFIGS = """#!/bin/sh
# What Kafka's own script of this name runs.
exec {java} -Xmx128m -cp {jars} kafka.admin.ConfigCommand "$@"
"""
READ, GROWN = "read", "grown"
INSERT = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'drill', '{"event": "drill"}')"""
KNOWN = "SELECT 1 FROM outbox_subscriptions AS s WHERE to_jsonb(s) -> 'leader' -> 'topics' ? %s"
KEPT_SECONDS, AGE_SECONDS = 3600, 3300
CERTIFICATE = "us.pem"
IS_RENEWED = "count(harvest_certificate_expiry_timestamp_seconds > time() + 86400 * 15) == {}"
HAS_ROOM = "count(harvest_database_bytes < harvest_database_limit_bytes) == {}"


def size_of(connection):
    return connection.execute("SELECT pg_database_size(current_database())").fetchone()[0]


@contextmanager
def limited(drill, limit_bytes):
    """The database may take so much. In the end each process says that it takes less than it may."""
    with drill.reconfigured(lambda said: said.update(databaseLimitBytes=limit_bytes)):
        yield
        drill.await_said(HAS_ROOM.format(len(drill.system.members)))


@contextmanager
def full_segment(drill):
    """A segment that was closed two hours ago has what is too much."""
    config = drill.system.operator_config()
    create_topic({"bootstrap.servers": drill.system.kafka.bootstrap_servers}, BULK, partitions=1, config={})
    with psycopg.connect(drill.system.dsn, autocommit=True) as connection:
        before = size_of(connection)
        connection.execute(WRITE_BULK, (BULK,))
        written = size_of(connection) - before
        assert written > LEAST_BULK_BYTES
        harvest("segments", "rotate", "-f", config)

        def is_closed():
            harvest("segments", "drop", "--yes", "-f", config)  # none is old enough, and what is full is closed
            return connection.execute(CLOSED_LONG_AGO).rowcount

        eventually(is_closed, "a segment is closed")
        limit = size_of(connection) - written // 2
    with limited(drill, limit):
        yield


@contextmanager
def small_limit(drill):
    """The database takes twice what it may."""
    with psycopg.connect(drill.system.dsn) as connection:
        limit = size_of(connection) // 2
    with limited(drill, limit):
        yield


class Stuck:
    """An application whose database goes away."""

    def __init__(self):
        self.is_away = False

    def consume_message(self, _transaction, _message):
        if self.is_away:
            raise psycopg.OperationalError("the database of the application is away")

    def finalize_txn(self, _transaction):
        pass


def provide_kafka_configs(drill):
    """Have Kafka's script for configurations on the path of the operator."""
    java = find_java(default_state())
    jars = resolve(kafka_jars(drill.system.kafka.version), default_state())
    drill.command(
        "kafka-configs.sh", KAFKA_CONFIGS.format(java=java / "bin" / "java", jars=os.pathsep.join(map(str, jars)))
    )


@contextmanager
def stuck_reader(drill):
    """A consumer does not go on, and what it reads next is nearly as old as its topic keeps it."""
    settings = {"bootstrap.servers": drill.system.kafka.bootstrap_servers}
    provide_kafka_configs(drill)
    kept = {"retention.ms": str(KEPT_SECONDS * 1000), "segment.ms": str(24 * KEPT_SECONDS * 1000)}
    create_topic(settings, READ, partitions=1, config=kept)
    producer = Producer(settings)

    def write():
        producer.produce(READ, b"v", timestamp=int((time.time() - AGE_SECONDS) * 1000))
        assert producer.flush(60) == 0

    write()
    create_tables(drill.system.dsn)
    application = Stuck()
    consumer = Consumer(
        application,
        name="drill",
        topics=[READ],
        settings={**settings, "session.timeout.ms": 6000},
        store=partial(PostgresStore, drill.system.dsn),
        limits=ShardLimits(max_attempts=1000),
    )
    running = Running(consumer.run)
    try:
        eventually(lambda: [each for each in consumer.owned() if each.position > 0], "it has read")
        application.is_away = True
        write()
        with Listener(drill.reader, ConsumerTelemetry(consumer)):
            yield
    finally:
        assert running.end() is None


def certificate(folder, lasts):
    """Put a certificate into the file, as it is replaced where one is used."""
    (issued,) = CA().issue_cert("us", not_after=datetime.now(UTC) + lasts).cert_chain_pems
    issued.write_to_path(folder / f"{CERTIFICATE}.new")
    (folder / f"{CERTIFICATE}.new").replace(folder / CERTIFICATE)


@contextmanager
def expiring(drill, lasts):
    """The certificate that the producers show expires."""
    folder = drill.config.parent
    certificate(folder, lasts)
    shown = {"ssl.certificate.location": str(folder / CERTIFICATE)}
    with drill.reconfigured(lambda said: said.update(producerKafkaConfig=shown)):
        yield
        drill.await_said(IS_RENEWED.format(len(drill.system.members)))


def renew_certificate(drill):
    """Put a new one into the file. Processes say so before they are restarted."""
    certificate(drill.config.parent, timedelta(days=90))
    drill.await_said(IS_RENEWED.format(len(drill.system.members)))


@contextmanager
def partitions_added(drill):
    """Somebody adds partitions to a topic whose records the pool has delivered."""
    admin = AdminClient({"bootstrap.servers": drill.system.kafka.bootstrap_servers, "log_level": 0})
    create_topic({"bootstrap.servers": drill.system.kafka.bootstrap_servers}, GROWN, partitions=1, config={})
    with psycopg.connect(drill.system.dsn, autocommit=True) as connection:
        connection.execute(INSERT, (GROWN,))
        eventually(lambda: connection.execute(KNOWN, (GROWN,)).fetchone(), "the pool knows the topic")
    admin.create_partitions([NewPartitions(GROWN, 3)], request_timeout=10)[GROWN].result()
    yield
