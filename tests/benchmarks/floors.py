"""Floors: what the servers and their clients allow, by the shortest code there is, independent of the harvester's."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from uuid import uuid4

import psycopg
from confluent_kafka import Producer

from tests.benchmarks.backlog import VALUE_BYTES, Servers

_BATCH = 1_000
_ROUND_TRIPS = 300

_MARK = """
UPDATE outbox SET leader_id = %s WHERE id = ANY(ARRAY(
  SELECT id FROM outbox WHERE leader_id IS NULL OR leader_id <> %s ORDER BY id LIMIT %s FOR UPDATE
)) RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values
"""


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


def round_trip(servers: Servers) -> float:
    """Return the seconds that one record takes to be acknowledged, sent as soon as the one before was."""
    producer = _lone_producer(servers)
    return median(_timed(lambda: _send_one(producer, servers)) for _ in range(_ROUND_TRIPS))


def round_trip_and_purge(servers: Servers) -> float:
    """Return the seconds that one record takes to be acknowledged and then permanently deleted, one after the other."""
    servers.fill(_ROUND_TRIPS)
    producer = _lone_producer(servers)
    with psycopg.connect(servers.dsn, autocommit=True) as connection:

        def one(number: int) -> None:
            _send_one(producer, servers)
            connection.execute("DELETE FROM outbox WHERE id = %s", (number,), prepare=True)

        return median(_timed(partial(one, number)) for number in range(1, _ROUND_TRIPS + 1))


def _lone_producer(servers: Servers) -> Producer:
    return Producer(
        {"bootstrap.servers": servers.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )


def _send_one(producer: Producer, servers: Servers) -> None:
    producer.produce(servers.topic, "x" * VALUE_BYTES, "key")
    producer.flush()


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
