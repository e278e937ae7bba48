"""The memory of a pipeline is bounded by bytes: 256 MB and three times the largest message, whichever way it goes.

`PIPELINE_MEMORY_SHARE=10` takes a tenth of the messages. Each peak is in the log of the test.
"""

import json
import logging
import os

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from support.native import Native
from support.peak import MEGABYTE, peak_of_pipeline

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(3_600)]

_log = logging.getLogger(__name__)

ALLOWED_BYTES = 256 * MEGABYTE
SHARE = int(os.environ.get("PIPELINE_MEMORY_SHARE", "1"))
SHAPES = {"large": (10_000 // SHARE, 1_000_000), "small": (1_000_000 // SHARE, 1_000)}
"""Number of messages, and the bytes of each."""
LARGEST = 4 * MEGABYTE


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        made.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        made.execute("CREATE TABLE arrived (id int PRIMARY KEY, note text)")
        yield made
        made.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


@pytest.fixture
def kafka(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers, "message.max.bytes": LARGEST}


@pytest.fixture
def topic(make_topic):
    return make_topic(partitions=2, **{"max.message.bytes": LARGEST})


# -- sources, filled


def from_postgres(dsn, connection, count, size):
    connection.execute("INSERT INTO t SELECT g, repeat('x', %s) FROM generate_series(1, %s) AS g", (size, count))
    return {"adaptor": "postgres", "data_source": dsn, "slot": f"memory_{os.getpid()}", "tables": ["t"]}


def from_changes(dsn, connection, count, size):
    """Values that an update left alone are no part of the change: they are fetched."""
    source = from_postgres(dsn, connection, count, size)
    connection.execute("ALTER TABLE t ADD n int")
    connection.execute("CREATE PUBLICATION memory FOR TABLE t")
    slot = f"memory_{os.getpid()}"
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    connection.execute("ALTER TABLE arrived ADD n int")
    connection.execute("UPDATE t SET n = 1")
    return {**source, "publication": "memory", "initial_copy": False}


def from_outbox(dsn, connection, count, size):
    Native(dsn, size=1_000_000, value_type="text")
    connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
        "SELECT clock_timestamp(), 'public.t', 'key-' || g, repeat('x', %s), '{}', '{}' "
        "FROM generate_series(1, %s) AS g",
        (size, count),
    )
    return {"adaptor": "outbox", "data_source": dsn, "subscription": "memory"}


def from_kafka(kafka, topic, count, size):
    producer = Producer({**kafka, "linger.ms": 50})
    for number in range(1, count + 1):
        while True:
            try:
                producer.produce(topic, json.dumps({"id": number, "note": "x" * size}), str(number))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return {"adaptor": "kafka", "kafka": kafka, "topics": [topic], "content": "data"}


def from_json_lines(folder, count, size):
    with (folder / "t.jsonl").open("w") as file:
        for number in range(1, count + 1):
            file.write(json.dumps({"id": number, "note": "x" * size}) + "\n")
    return {"adaptor": "file", "path": str(folder / "t.jsonl"), "content": "data"}


def from_parquet(folder, count, size):
    """One row group, with the value in its dictionary."""
    (folder / "in").mkdir()
    note = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * size])
    pq.write_table(pa.table({"id": list(range(1, count + 1)), "note": note}), folder / "in" / "1.parquet")
    return {"adaptor": "file", "path": str(folder / "in"), "format": "parquet"}


# -- destinations, counted


def rows(connection):
    return connection.execute("SELECT count(*) FROM arrived").fetchone()[0]


def records(admin, topic, partitions=2):
    asked = admin.list_offsets({TopicPartition(topic, each): OffsetSpec.latest() for each in range(partitions)})
    return sum(each.result(30).offset for each in asked.values())


def measured(tmp_path, way, shape, source, target, counted):
    count, size = shape
    declaration = {"folder": str(tmp_path / "pipeline"), "reader": source, "writers": {"w": target}}
    peak = peak_of_pipeline(tmp_path, declaration, is_done=lambda: counted() >= count)
    assert counted() >= count
    _log.warning("%s: %d messages of %d bytes, peak %.0f MB", way, count, size, peak / MEGABYTE)
    assert peak <= ALLOWED_BYTES + 3 * size, f"{peak / MEGABYTE:.0f} MB"


@pytest.mark.parametrize("fill", [from_postgres, from_changes])
def test_postgres_to_postgres(tmp_path, dsn, connection, shape, fill):
    source = fill(dsn, connection, *shape)
    target = {"adaptor": "postgres", "data_source": dsn, "table": "arrived"}
    measured(tmp_path, f"{fill.__name__} to postgres", shape, source, target, lambda: rows(connection))


def test_postgres_to_kafka(tmp_path, dsn, connection, shape, kafka, topic, admin):
    source, target = from_postgres(dsn, connection, *shape), {"adaptor": "kafka", "kafka": kafka, "topic": topic}
    measured(tmp_path, "postgres to kafka", shape, source, target, lambda: records(admin, topic))


def test_kafka_to_postgres(tmp_path, dsn, connection, shape, kafka, topic):
    target = {"adaptor": "postgres", "data_source": dsn, "table": "arrived"}
    source = from_kafka(kafka, topic, *shape)
    measured(tmp_path, "kafka to postgres", shape, source, target, lambda: rows(connection))


def test_outbox_to_kafka(tmp_path, dsn, connection, shape, kafka, topic, admin):
    source, target = from_outbox(dsn, connection, *shape), {"adaptor": "kafka", "kafka": kafka, "topic": topic}
    measured(tmp_path, "outbox to kafka", shape, source, target, lambda: records(admin, topic))


def test_outbox_to_json_lines(tmp_path, dsn, connection, shape):
    source = from_outbox(dsn, connection, *shape)
    out = tmp_path / "out.jsonl"
    target = {"adaptor": "file", "path": str(out)}
    size = shape[1]
    counted = lambda: out.stat().st_size // size if out.exists() else 0  # noqa: E731 - lines are a little longer
    measured(tmp_path, "outbox to json lines", shape, source, target, counted)


@pytest.mark.parametrize("fill", [from_json_lines, from_parquet])
@pytest.mark.parametrize("kind", ["json_lines", "parquet"])
def test_files_to_files(tmp_path, shape, fill, kind):
    source = fill(tmp_path, *shape)
    target = {"adaptor": "file", "path": str(tmp_path / "out"), "format": kind}
    # It ends by itself.
    declaration = {"folder": str(tmp_path / "pipeline"), "reader": source, "writers": {"w": target}}
    peak = peak_of_pipeline(tmp_path, declaration, is_done=lambda: False)
    _log.warning("%s to %s: %d messages of %d bytes, peak %.0f MB", fill.__name__, kind, *shape, peak / MEGABYTE)
    assert peak <= ALLOWED_BYTES + 3 * shape[1], f"{peak / MEGABYTE:.0f} MB"
