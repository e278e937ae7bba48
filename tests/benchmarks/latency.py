"""From commit to a reader of committed records, at a steady rate, beside produce to consume without an outbox.

The writer notes the time when a commit has returned to it, or before it hands a record to the producer; the reader when
it has the record. Both are threads of this process, the harvester is one of its own, as it would be.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.benchmarks.backlog import KEYS, PARTITIONS, VALUE_BYTES, Servers
from tests.benchmarks.report import Result, at_most
from tests.benchmarks.timeline import LEGS, legs, read_steps

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_RATES = (100, 500, 1_000)
_SECONDS = 10
_SETTLE_SECONDS = 3
_LONGEST_SECONDS = 60
_TRANSACTIONS = 3_000
_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, '{}', '{}') RETURNING id
"""
_MORE_MILLISECONDS = {"transactional": 5, "pipelined": 3, "barrier": 5}
"""At most, beside a bare transaction, or beside produce and consume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds. `legs` are the medians of what a record waits for in turn."""

    p50: float
    p95: float
    p99: float
    legs: Mapping[str, float] = field(default_factory=dict)


def latencies(servers: Servers, size: "Size") -> Iterator[Result]:
    """At least once and exactly once, at steady rates, against produce and consume and against a bare transaction."""
    _transactions(servers)
    _harvested(servers, "transactional", _RATES[0])
    for rate in _RATES:
        found: dict[str, list[Latency]] = {}
        for _ in range(size.rounds):
            for name, measure in _measures(servers, rate):
                found.setdefault(name, []).append(measure())
        yield from _lines(f"latency-{rate}", found)


def _measures(servers: Servers, rate: int) -> Iterator[tuple[str, Callable[[], Latency]]]:
    yield "raw", partial(_raw, servers, rate)
    yield "bare-transaction", partial(_transactions, servers)
    for delivery in _MORE_MILLISECONDS:
        yield delivery, partial(_harvested, servers, delivery, rate)


def _lines(prefix: str, found: Mapping[str, list[Latency]]) -> Iterator[Result]:
    """Return the medians of the rounds; a target is met if the median of the differences is small enough."""
    for name, rounds in found.items():
        beside = found["bare-transaction" if name == "transactional" else "raw"]
        p50 = median(each.p50 for each in rounds)
        if more := _MORE_MILLISECONDS.get(name):
            target = p50 - median(each.p50 - other.p50 for each, other in zip(rounds, beside, strict=True)) + more
            yield at_most(f"{prefix}-{name}-p50", p50, "ms", target=target)
        else:
            yield Result(name=f"{prefix}-{name}-p50", value=p50, unit="ms")
        yield Result(name=f"{prefix}-{name}-p95", value=median(each.p95 for each in rounds), unit="ms")
        yield Result(name=f"{prefix}-{name}-p99", value=median(each.p99 for each in rounds), unit="ms")
        for leg in rounds[0].legs:
            value = median(each.legs[leg] for each in rounds)
            yield Result(name=f"{prefix}-{name}-{leg}", value=value, unit="ms")


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
    return Latency(p50=cuts[49], p95=cuts[94], p99=cuts[98])


def _raw(servers: Servers, rate: int) -> Latency:
    producer = Producer(
        {"bootstrap.servers": servers.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0, "acks": "all"}
    )

    def write(key: str, value: str) -> tuple[float, int]:
        began = time.perf_counter()
        producer.produce(servers.topic, value, key)
        producer.poll(0)
        return began, 0

    return _latency(_measured(servers, rate, write))


def _harvested(servers: Servers, delivery: str, rate: int) -> Latency:
    servers.make_native()
    with TemporaryDirectory() as folder, psycopg.connect(servers.dsn, autocommit=True) as connection:
        lines = Path(folder) / "timeline"

        def write(key: str, value: str) -> tuple[float, int]:
            row = connection.execute(_INSERT, (servers.topic, key, value), prepare=True).fetchone()
            return time.perf_counter(), row[0] if row else 0

        with harvester(servers, "tests.benchmarks.timeline", str(lines), delivery=delivery):
            records = _measured(servers, rate, write)
        pages = read_steps(lines, delivery)
    return _latency(records, [legs(pages, each.id, each.written, each.came) for each in records])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    id: int
    written: float
    came: float


def _latency(records: Sequence[_Record], waits: Sequence[Sequence[float]] = ()) -> Latency:
    cuts = quantiles([each.came - each.written for each in records], n=100)
    medians = {leg: median(each) * 1_000 for leg, each in zip(LEGS, zip(*waits, strict=True), strict=False)}
    return Latency(p50=cuts[49] * 1_000, p95=cuts[94] * 1_000, p99=cuts[98] * 1_000, legs=medians)


def _measured(servers: Servers, rate: int, write: Callable[[str, str], tuple[float, int]]) -> list[_Record]:
    """Write key and value of many records; `write` returns the time from which a record counts, and its id. Return
    those after the first seconds."""
    records = rate * (_SECONDS + _SETTLE_SECONDS)
    written: list[tuple[float, int]] = []
    came: dict[int, float] = {}
    ready = threading.Event()
    reader = threading.Thread(target=_read, args=(servers, records, came, ready), daemon=True)
    reader.start()
    if not ready.wait(_LONGEST_SECONDS):
        raise RuntimeError("the reader did not come to read")
    began = time.perf_counter()
    for number in range(records):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        written.append(write(f"key-{number * 7919 % KEYS}", f"{number}".ljust(VALUE_BYTES, "x")))
    reader.join(_LONGEST_SECONDS)
    if len(came) < records:
        raise RuntimeError(f"only {len(came)} of {records} records came")
    settled = range(rate * _SETTLE_SECONDS, records)
    return [_Record(id=written[number][1], written=written[number][0], came=came[number]) for number in settled]


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
        if message is not None and message.error() is None and (value := message.value()) is not None:
            came.setdefault(int(value.rstrip(b"x")), time.perf_counter())
    consumer.close()


@contextmanager
def harvester(
    servers: Servers, *module: str, leads: bool = True, **settings: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `harvest run` with the default limits for as long as it takes; it leads when this is entered, unless that is
    not waited for. `module` is what stands for `harvest`, and its arguments."""
    with TemporaryDirectory() as folder:
        config, log = Path(folder) / "harvest.yaml", Path(folder) / "log"
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": servers.bootstrap_servers},
            "producerKafkaConfig": {"compression.type": "lz4"},
            "leaderGroupID": f"bench-{uuid4().hex[:8]}",
            "dataSource": servers.dsn,
            "leadership": "solo",
            "delivery": "barrier",
            **settings,
        }
        config.write_text(yaml.safe_dump({"harvest": harvest}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        command = [
            sys.executable,
            "-m",
            *(module or ["harvest_lib.cli"]),
            "run",
            "-f",
            str(config),
            "--log-format",
            "json",
        ]
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
