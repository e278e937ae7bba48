"""Benchmarks that take a large backlog or several processes: memory, shards."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import psycopg
from psycopg import sql

from harvest_lib.source.sharding import shard_expression
from tests.benchmarks.backlog import Servers
from tests.benchmarks.latency import harvester
from tests.benchmarks.report import Result, at_least, at_most
from tests.support.peak import peak_of_drain

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_LOOK_SECONDS = 0.05
_LONGEST_SECONDS = 600
_SETTLED_SECONDS = 3.0
_MEGABYTE = 1_000_000

_ALLOWED_MEGABYTES = 150
"""Beside three times the largest record, as docs/operations.md says."""
_LARGE_RECORDS, _LARGE_BYTES = 400, 900_000
_ENGINES = [
    ("mark", "barrier"),
    ("mark", "pipelined"),
    ("mark", "transactional"),
    ("mark", "sequenced"),
    *(
        (source, delivery)
        for source in ("snapshot", "transaction_id")
        for delivery in ("barrier", "pipelined", "transactional", "sequenced")
    ),
]
_LARGE = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, 'key-' || g %% 50, repeat('x', %(bytes)s), '{}', '{}'
FROM generate_series(1, %(records)s) g
"""

_PASSED = "SELECT bool_and(pg_visible_in_snapshot(%s::xid8, low_watermark)), count(*) FROM outbox_subscriptions"


def memory(servers: Servers, size: "Size") -> Iterator[Result]:
    """Resident memory at its highest while a backlog is drained that is fifty times as large as usual."""
    records = 50 * size.records
    servers.make_native()
    servers.insert(records)
    servers.settle()
    highest = 0
    with harvester(servers, delivery="transactional") as process:
        watched, began = psutil.Process(process.pid), time.monotonic()
        last = _last_transaction(servers)
        while not _is_passed(servers, last, shards=1):
            highest = max(highest, watched.memory_info().rss)
            if time.monotonic() - began > _LONGEST_SECONDS:
                raise RuntimeError("the backlog was not drained in time")
            time.sleep(_LOOK_SECONDS)
    yield at_most("memory", highest / _MEGABYTE, "MB", target=_ALLOWED_MEGABYTES)


def memory_of_large(servers: Servers, size: "Size") -> Iterator[Result]:
    """Resident memory at its highest while large values of one transaction are drained, of each engine."""
    for source, delivery in _ENGINES:
        if source == "mark":
            servers.fill(0)
        else:
            servers.make_native()
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE text")
            connection.execute(_LARGE, {"topic": servers.topic, "records": _LARGE_RECORDS, "bytes": _LARGE_BYTES})
        settings = {
            "baseKafkaConfig": {"bootstrap.servers": servers.bootstrap_servers},
            "leaderGroupID": f"bench-{uuid4().hex[:8]}",
            "dataSource": servers.dsn,
            "source": source,
            "delivery": delivery,
            "leadership": "neli",
        }
        with TemporaryDirectory() as folder:
            highest = peak_of_drain(folder, settings)
        target = _ALLOWED_MEGABYTES + 3 * _LARGE_BYTES / _MEGABYTE
        yield at_most(f"memory-{source}-{delivery}", highest / _MEGABYTE, "MB", target=target)


def shards(servers: Servers, size: "Size") -> Iterator[Result]:
    """Two shards in two processes, against one in one, from the commit of a backlog until all have passed it."""
    records, one, two, shares = 5 * size.records, [], [], []
    for _ in range(size.rounds):
        one.append(drain_rate(servers, records, shards=1))
        two.append(drain_rate(servers, records, shards=2))
        shares.append(_share(servers))
    ratio = median(b / a for a, b in zip(one, two, strict=True))
    yield at_least("drain-2-shards", median(two), "/s", floor=median(one), ratio=ratio, target=1.0)
    yield at_most("drain-2-shards-inequality", median(abs(share - 0.5) for share in shares), "of all", target=0.05)


def drain_rate(servers: Servers, records: int, *, shards: int) -> float:
    """Return records per second from the commit of a backlog, as one transaction, until all shards have passed it."""
    servers.make_native()
    group = f"bench-{uuid4().hex[:8]}"
    settings = {"delivery": "transactional", "shards": shards, "leadership": "neli", "leaderGroupID": group}
    with ExitStack() as stack:
        for _ in range(shards):
            stack.enter_context(harvester(servers, leads=False, **settings))
        _wait_for_leaders(servers, shards)
        with psycopg.connect(servers.dsn) as writer:
            servers.insert(records, connection=writer)
            ((last,),) = writer.execute("SELECT pg_current_xact_id()::text").fetchall()
            servers.settle(analyze=False)
            writer.commit()
        began = time.perf_counter()
        while not _is_passed(servers, last, shards=shards):
            if time.perf_counter() - began > _LONGEST_SECONDS:
                raise RuntimeError("the backlog was not drained in time")
            time.sleep(_LOOK_SECONDS)
        return records / (time.perf_counter() - began)


def _share(servers: Servers) -> float:
    """Return what part of the records is the first shard's."""
    ours = shard_expression(sql.Identifier("kafka_key"), 2)
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        row = connection.execute(sql.SQL("SELECT avg(({} = 0)::int) FROM outbox").format(ours)).fetchone()
    return float(row[0]) if row else 0.0


def _wait_for_leaders(servers: Servers, shards: int) -> None:
    """Wait until each shard has been led for a while by the same: a member that joins moves the leadership."""
    deadline, since, before = time.monotonic() + _LONGEST_SECONDS, time.monotonic(), None
    while time.monotonic() < deadline:
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            now = connection.execute("SELECT shard, epoch FROM outbox_subscriptions ORDER BY shard").fetchall()
        if now != before:
            since, before = time.monotonic(), now
        if len(now) == shards and time.monotonic() - since > _SETTLED_SECONDS:
            return
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError("the shards were not led in time")


def _last_transaction(servers: Servers) -> str:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        row = connection.execute("SELECT max(transaction_id::text::bigint) FROM outbox").fetchone()
    return str(row[0]) if row else "1"


def _is_passed(servers: Servers, transaction_id: str, *, shards: int) -> bool:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        row = connection.execute(_PASSED, (transaction_id,)).fetchone()
    return row is not None and bool(row[0]) and row[1] == shards
