"""Floors: what the servers and their clients allow, by the shortest code there is, independent of the harvester's."""

import time
from uuid import uuid4

import psycopg
from confluent_kafka import Producer

from tests.benchmarks.backlog import KEYS, VALUE_BYTES, Servers

_BATCH = 1_000

_MARK = """
UPDATE outbox SET leader_id = %s WHERE id = ANY(ARRAY(
  SELECT id FROM outbox WHERE leader_id IS NULL OR leader_id <> %s ORDER BY id LIMIT %s FOR UPDATE
)) RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values
"""

_QUEUE_FULL_POLL_SECONDS = 0.01


def mark_and_purge(servers: Servers, records: int) -> float:
    """Return records per second through a table that is marked and purged by batch, with nothing in between."""
    me, left = uuid4(), records
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        cursor = connection.cursor(binary=True)
        began = time.perf_counter()
        while left:
            rows = cursor.execute(_MARK, (me, me, _BATCH), prepare=True).fetchall()
            cursor.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in rows],), prepare=True)
            left -= len(rows)
        return records / (time.perf_counter() - began)


def produce(servers: Servers, records: int) -> float:
    """Return records per second from memory into Kafka, durable there, with one header."""
    producer = Producer(
        {
            "bootstrap.servers": servers.bootstrap_servers,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "linger.ms": 2,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    value, headers = ("0123456789abcdef" * 13)[:VALUE_BYTES], [("Seq", "123")]
    began = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(servers.topic, value, f"key-{number % KEYS}", headers=headers)
            except BufferError:
                producer.poll(_QUEUE_FULL_POLL_SECONDS)
            else:
                break
    producer.flush()
    return records / (time.perf_counter() - began)
