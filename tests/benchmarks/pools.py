"""Time without a leader of an outbox: after a SIGKILL, and after a SIGTERM."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from infra.demo.pool import DemoPool
from infra.harvester import Lead
from tests.benchmarks.backlog import PARTITIONS, Servers

SESSION_SECONDS = 10.0
"""The default."""

_SETTLED_SECONDS = 3.0
"""A member that joins moves the leadership; after so long without a change all have joined."""
_LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_WRITE_SECONDS = 0.01


def failover(servers: Servers) -> float:
    """Return the seconds from the SIGKILL of a leader to the term of the next."""
    servers.fill(0)
    with _pool(servers) as (pool, lead):
        killed_at = pool.kill(lead)
        return _successor(pool, lead).at - killed_at


def hand_over(servers: Servers) -> float:
    """Return the seconds from the SIGTERM of a leader to the term of the next."""
    servers.fill(0)
    with _pool(servers) as (pool, lead):
        asked = pool.release(lead)
        return _successor(pool, lead).at - asked


def first_record(
    servers: Servers,
    end: Callable[[DemoPool, Lead], float],
    *,
    delivery: str = "transactional",
    leadership: str = "neli",
) -> float:
    """Return the seconds from the end of a leader, exactly once, to the first committed record of the next. Records of
    `sequenced` count when they arrive, the acknowledgement follows."""
    servers.make_native()
    group = f"bench-{uuid4().hex[:8]}"  # the outbox is another one each time, and two of a name refuse each other
    settings = {"delivery": delivery, "leadership": leadership, "leaderGroupID": group}
    with _pool(servers, **settings) as (pool, lead), _written(servers), _arrivals(servers) as arrivals:
        _wait_until(lambda: bool(arrivals), "a record came")
        ended = end(pool, lead)
        successor = _successor(pool, lead)
        _wait_until(lambda: arrivals[-1] > successor.at, "the successor's first record came")
        return next(each for each in arrivals if each > successor.at) - ended


@contextmanager
def _written(servers: Servers) -> Iterator[None]:
    """Have a record written every few milliseconds."""
    done = threading.Event()

    def write() -> None:
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            while not done.wait(_WRITE_SECONDS):
                servers.insert(1, connection=connection)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


@contextmanager
def _arrivals(servers: Servers) -> Iterator[list[float]]:
    """Note when committed records come, in Unix time."""
    arrivals: list[float] = []
    done = threading.Event()
    settings = {"bootstrap.servers": servers.bootstrap_servers, "group.id": servers.topic}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "latest"})
    consumer.assign([TopicPartition(servers.topic, number, OFFSET_END) for number in range(PARTITIONS)])

    def read() -> None:
        while not done.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                arrivals.append(time.time())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield arrivals
    finally:
        done.set()
        reader.join()
        consumer.close()


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in time: {what}")
        time.sleep(_LOOK_SECONDS)


@contextmanager
def _pool(servers: Servers, **settings: object) -> Iterator[tuple[DemoPool, Lead]]:
    with TemporaryDirectory() as folder:
        config = Path(folder) / "harvest.yaml"
        config.write_text(servers.yaml(**settings))
        pool = DemoPool(config, Path(folder), size=2)
        pool.start()
        try:
            yield pool, _settled(pool)
        finally:
            pool.stop()


def _settled(pool: DemoPool) -> Lead:
    changed, deadline = time.monotonic(), time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        if pool.look():
            changed = time.monotonic()
        if pool.all_started and pool.leader is not None and time.monotonic() - changed > _SETTLED_SECONDS:
            return pool.leader
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError("nobody leads permanently")


def _successor(pool: DemoPool, before: Lead) -> Lead:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        for lead in pool.look():
            if lead.harvester != before.harvester:
                return lead
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError("nobody took over")
