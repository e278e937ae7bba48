"""The least cost of reading and producing: loops in C (`floors.c`), over the very libraries that the clients have."""

import ctypes
import importlib
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import confluent_kafka
import psycopg

from infra.native_build import compile_library
from tests.benchmarks.backlog import Servers

_COLUMNS = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_PAGE = 2_000
_READ = f"SELECT {_COLUMNS} FROM outbox WHERE id > $1 ORDER BY id LIMIT {_PAGE}"  # noqa: S608 - a constant
_SOME = f"SELECT {_COLUMNS} FROM outbox ORDER BY id LIMIT 50000"  # noqa: S608 - a constant
_OF_LIBPQ = ("PQexecPrepared", "PQntuples", "PQgetvalue", "PQgetlength", "PQclear")
_OF_LIBRDKAFKA = (
    "rd_kafka_producev",
    "rd_kafka_headers_new",
    "rd_kafka_header_add",
    "rd_kafka_headers_destroy",
    "rd_kafka_flush",
)
_PRODUCER = 0
_ERROR_BYTES = 512


def slower(servers: Servers, records: int) -> float:
    """Return records per second of the slower of the two loops; the outbox has so many."""
    return min(read(servers, records), produce(servers, records))


def both(servers: Servers, records: int) -> float:
    """Return records per second of the two loops at once: the rate of each where they share the processors."""
    with ThreadPoolExecutor(max_workers=2) as threads:
        began = time.perf_counter()
        for loop in [threads.submit(each, servers, records) for each in (read, produce)]:
            loop.result()
        return records / (time.perf_counter() - began)


def read(servers: Servers, records: int) -> float:
    """Return records per second of a bare SELECT by pages, into nothing."""
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.pgconn.prepare(b"floor", _READ.encode())
        began = time.perf_counter()
        found = _library().floor_read(_address(connection.pgconn, "pgconn_ptr"))
        seconds = time.perf_counter() - began
    if found != records:
        raise RuntimeError(f"the floor read {found} of {records} records")
    return records / seconds


def produce(servers: Servers, records: int) -> float:
    """Return records per second of a bare producer, from memory: the payloads and the headers that the harvester sends,
    with its settings."""
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        rows = connection.cursor(binary=True).execute(_SOME).pgresult
    settings = {
        "bootstrap.servers": servers.bootstrap_servers,
        "enable.idempotence": "true",
        "linger.ms": "2",
        "compression.type": "lz4",
        "partitioner": "consistent",
        "queue.buffering.max.messages": "1000000",
    }
    producer = _make_producer(settings)
    try:
        began = time.perf_counter()
        error = _library().floor_produce(producer, _address(rows, "pgresult_ptr"), records)
        seconds = time.perf_counter() - began
    finally:
        _librdkafka().rd_kafka_destroy(producer)
    if error:
        raise RuntimeError(f"the floor could not produce: librdkafka's error {error}")
    return records / seconds


def _address(of: object, name: str) -> int:
    """Return libpq's address of a connection or a result: psycopg's C code has it, its types have not."""
    found: int | None = getattr(of, name, None)
    if not found:
        raise RuntimeError(f"psycopg does not expose {name}")
    return found


def _make_producer(settings: dict[str, str]) -> int:
    kafka, said = _librdkafka(), ctypes.create_string_buffer(_ERROR_BYTES)
    configuration = kafka.rd_kafka_conf_new()
    for name, value in settings.items():
        if kafka.rd_kafka_conf_set(configuration, name.encode(), value.encode(), said, _ERROR_BYTES):
            raise RuntimeError(said.value.decode())
    producer = kafka.rd_kafka_new(_PRODUCER, configuration, said, _ERROR_BYTES)
    if not producer:
        raise RuntimeError(said.value.decode())
    return int(producer)


@cache
def _librdkafka() -> CDLL:
    kafka = CDLL(str(importlib.import_module(confluent_kafka.libversion.__module__).__file__))
    kafka.rd_kafka_conf_new.restype = kafka.rd_kafka_new.restype = c_void_p
    kafka.rd_kafka_conf_set.argtypes = [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]
    kafka.rd_kafka_new.argtypes = [c_int, c_void_p, c_char_p, c_size_t]
    kafka.rd_kafka_destroy.argtypes = [c_void_p]
    return kafka


@cache
def unavailable() -> str:
    """Compile the loops; return why that cannot be done here, or an empty string."""
    reason = compile_library(Path(__file__).with_name("floors.c"), _target())
    return f"the floors are loops in C, and could not be compiled: {reason}" if reason else ""


@cache
def _target() -> Path:
    return Path(mkdtemp()) / "floors.so"


@cache
def _library() -> CDLL:
    """Load the loops. Raises RuntimeError without a C compiler."""
    if reason := unavailable():
        raise RuntimeError(reason)
    library = CDLL(str(_target()))
    libpq = CDLL(str(importlib.import_module(f"psycopg_{psycopg.pq.__impl__}.pq").__file__))
    named = [(libpq, _OF_LIBPQ), (_librdkafka(), _OF_LIBRDKAFKA)]
    found = [ctypes.cast(getattr(each, name), c_void_p) for each, names in named for name in names]
    if not library.floor_bind((c_void_p * len(found))(*found), len(found)):
        raise RuntimeError("floors.c wants other functions")
    library.floor_read.argtypes, library.floor_read.restype = [c_void_p], c_int64
    library.floor_produce.argtypes = [c_void_p, c_void_p, c_int64]
    return library
