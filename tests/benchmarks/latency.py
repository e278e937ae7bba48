"""From commit to a reader of committed records, at a steady rate, beside produce to consume without an outbox.

The writer notes the time when a commit has returned to it, or before it hands a record to the producer; the reader when
it has the record. Both are threads of this process, the harvester is one of its own, as it would be.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.benchmarks.backlog import KEYS, PARTITIONS, VALUE_BYTES, Servers
from tests.benchmarks.report import Result, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_RATE = 1_000
_SECONDS = 10
_SETTLE_SECONDS = 3
_LONGEST_SECONDS = 60
_TRANSACTIONS = 3_000
_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, '{}', '{}')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float


def latencies(servers: Servers, size: "Size") -> Iterator[Result]:
    """At least once and exactly once, against produce and consume."""
    transaction = _transactions(servers)
    _harvested(servers, "transactional")
    raw = _raw(servers)
    yield Result(name="latency-raw-p50", value=raw.p50, unit="ms")
    yield Result(name="latency-raw-p99", value=raw.p99, unit="ms")
    yield Result(name="latency-bare-transaction-p50", value=transaction.p50, unit="ms")
    yield Result(name="latency-bare-transaction-p99", value=transaction.p99, unit="ms")
    for delivery, more50, more99 in (("pipelined", 5, 20), ("barrier", 5, 20), ("transactional", 15, 40)):
        found = _harvested(servers, delivery)
        yield at_most(f"latency-{delivery}-p50", found.p50, "ms", target=raw.p50 + more50)
        yield at_most(f"latency-{delivery}-p99", found.p99, "ms", target=raw.p99 + more99)


def _transactions(servers: Servers) -> Latency:
    """Return what one transaction of ten records takes by itself, once the broker has compiled its code for them: until
    then it takes several times as long."""
    producer = Producer(
        {"bootstrap.servers": servers.bootstrap_servers, "transactional.id": f"bench-{uuid4().hex[:8]}"}
    )
    producer.init_transactions(_LONGEST_SECONDS)
    milliseconds: list[float] = []
    deadline = time.monotonic() + _LONGEST_SECONDS
    while len(milliseconds) < _TRANSACTIONS and time.monotonic() < deadline:
        began = time.perf_counter()
        producer.begin_transaction()
        for number in range(10):
            producer.produce(servers.topic, b"x" * VALUE_BYTES, f"key-{number * 7919 % KEYS}")
        producer.commit_transaction(_LONGEST_SECONDS)
        milliseconds.append((time.perf_counter() - began) * 1_000)
    cuts = quantiles(milliseconds[-_TRANSACTIONS // 5 :], n=100)
    return Latency(p50=cuts[49], p99=cuts[98])


def _raw(servers: Servers) -> Latency:
    producer = Producer(
        {"bootstrap.servers": servers.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0, "acks": "all"}
    )

    def write(key: str, value: str) -> float:
        began = time.perf_counter()
        producer.produce(servers.topic, value, key)
        producer.poll(0)
        return began

    return _measured(servers, write)


def _harvested(servers: Servers, delivery: str) -> Latency:
    servers.make_native()
    with (
        harvester(servers, delivery=delivery),
        psycopg.connect(servers.dsn, autocommit=True) as connection,
    ):

        def write(key: str, value: str) -> float:
            connection.execute(_INSERT, (servers.topic, key, value), prepare=True)
            return time.perf_counter()

        return _measured(servers, write)


def _measured(servers: Servers, write: Callable[[str, str], float]) -> Latency:
    """Write key and value of many records; `write` returns the time from which a record counts."""
    records = _RATE * (_SECONDS + _SETTLE_SECONDS)
    written: list[float] = []
    came: dict[int, float] = {}
    ready = threading.Event()
    reader = threading.Thread(target=_read, args=(servers, records, came, ready), daemon=True)
    reader.start()
    if not ready.wait(_LONGEST_SECONDS):
        raise RuntimeError("the reader did not come to read")
    began = time.perf_counter()
    for number in range(records):
        time.sleep(max(0.0, began + number / _RATE - time.perf_counter()))
        written.append(write(f"key-{number * 7919 % KEYS}", f"{number}".ljust(VALUE_BYTES, "x")))
    reader.join(_LONGEST_SECONDS)
    if len(came) < records:
        raise RuntimeError(f"only {len(came)} of {records} records came")
    cuts = quantiles([came[number] - written[number] for number in range(_RATE * _SETTLE_SECONDS, records)], n=100)
    return Latency(p50=cuts[49] * 1_000, p99=cuts[98] * 1_000)


def _read(servers: Servers, records: int, came: dict[int, float], ready: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers.bootstrap_servers,
            "group.id": f"bench-{uuid4().hex[:8]}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    partitions = [TopicPartition(servers.topic, number) for number in range(PARTITIONS)]
    for partition in partitions:
        _, partition.offset = consumer.get_watermark_offsets(partition, timeout=_LONGEST_SECONDS)
    consumer.assign(partitions)
    consumer.poll(0.5)
    ready.set()
    deadline = time.monotonic() + _LONGEST_SECONDS
    while len(came) < records and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            came.setdefault(int(message.value().rstrip(b"x")), time.perf_counter())
    consumer.close()


@contextmanager
def harvester(servers: Servers, *, leads: bool = True, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run `harvest run` with the default limits for as long as it takes; it leads when this is entered, unless that is
    not waited for."""
    with TemporaryDirectory() as folder:
        config, log = Path(folder) / "harvest.yaml", Path(folder) / "log"
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": servers.bootstrap_servers},
            "producerKafkaConfig": {"compression.type": "lz4"},
            "leaderGroupID": f"bench-{uuid4().hex[:8]}",
            "dataSource": servers.dsn,
            "leadership": "solo",
            **settings,
        }
        config.write_text(yaml.safe_dump({"harvest": harvest}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        command = [sys.executable, "-m", "harvest_lib.cli", "run", "-f", str(config), "--log-format", "json"]
        with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
            try:
                deadline = time.monotonic() + _LONGEST_SECONDS
                while leads and "leader_acquired" not in log.read_text():
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"the harvester did not come to lead: {log.read_text()[-2000:]}")
                    time.sleep(0.05)
                yield process
            finally:
                process.terminate()
