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
    """Return the seconds that one record takes to be acknowledged and then deleted for good, one after the other."""
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


_COLUMNS = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_READ = f"SELECT {_COLUMNS} FROM outbox WHERE id > %s ORDER BY id LIMIT {2 * _BATCH}"  # noqa: S608 - a constant
_REPEATED = 50_000


def read(servers: Servers, records: int) -> float:
    """Return records per second of a bare SELECT by pages, into nothing."""
    left, last = records, 0
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        cursor = connection.cursor(binary=True)
        began = time.perf_counter()
        while left > 0:
            rows = cursor.execute(_READ, (last,), prepare=True).fetchall()
            left, last = left - len(rows), rows[-1][0]
        return records / (time.perf_counter() - began)


def produce(servers: Servers, records: int) -> float:
    """Return records per second of a bare producer, from memory: the payloads and the headers that the harvester sends,
    with its settings."""
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        rows = connection.execute(f"SELECT {_COLUMNS} FROM outbox ORDER BY id LIMIT {_REPEATED}").fetchall()  # noqa: S608
    stamped = b"x" * 25
    ready = [(row[1], row[3], row[2], [*zip(row[4], row[5], strict=True), ("harvest", stamped)]) for row in rows]
    producer = Producer(
        {
            "bootstrap.servers": servers.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "compression.type": "lz4",
            "partitioner": "consistent",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    began = time.perf_counter()
    for number in range(records):
        topic, value, key, headers = ready[number % len(ready)]
        producer.produce(topic, value, key, headers=headers)
        if number % _BATCH == 0:
            producer.poll(0)
    producer.flush()
    return records / (time.perf_counter() - began)
