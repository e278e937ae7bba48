"""Scenarios of harvesting in batches: drains of the native table, against what its two ends allow in the same run."""

import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.assembly.factory import make_batch_source
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from tests.benchmarks import native_floors
from tests.benchmarks.backlog import KEYS, Servers
from tests.benchmarks.drain import BatchDrain, drain_batches, drain_in_process, native_unavailable, ways
from tests.benchmarks.report import LeftOut, Result, at_least, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

KEPT = 50
"""Times the size of a drain: so many records have been harvested already, and are kept."""
_SEGMENTS = "SELECT relid::text FROM pg_partition_tree('outbox') WHERE isleaf"

_LIVE_RATE = 1_000
_LIVE_SECONDS = 5
_POLLS = 200
_OWN_RECORDS = 3


_SHARES = {"transactional": 0.7, "pipelined": 0.7, "barrier": 0.2}
"""Of the slower floor, natively."""
_SHARES_OF_BOTH = {"transactional": 0.85, "pipelined": 0.85}
"""Of what a loop that only reads and one that only produces reach together, natively."""
_FASTER, _OF_PIPELINED = 1.8, 0.9
"""Exactly once: times the rate of the path in Python, and of at least once."""
_CPU_MICROS = {"transactional": 2.0, "pipelined": 2.0, "barrier": 4.0}
_CPU_MICROS_MARKED = 10.0
"""CPU time of the whole process per record, natively; marked and purged, under the barrier."""


_FLOORS = {
    "floor-read": native_floors.read,
    "floor-produce": native_floors.produce,
    "floor-both-at-once": native_floors.both,
}


def drains(servers: Servers, size: "Size") -> Iterator[Result | LeftOut]:
    """Each delivery on the same table, natively and by Python in turn: reading leaves it as it is."""
    records = 10 * size.records
    servers.make_native()
    servers.insert(records)
    servers.settle()
    no_floors, no_native = native_floors.unavailable(), native_unavailable()
    bare: dict[str, list[float]] = {} if no_floors else {name: [] for name in _FLOORS}
    found: dict[tuple[str, str], list[BatchDrain]] = {(delivery, way): [] for delivery in _SHARES for way in ways()}
    for _ in range(size.rounds):
        for name, rates in bare.items():
            rates.append(_FLOORS[name](servers, records))
        for (delivery, way), some in found.items():
            some.append(_in_process(servers, records, delivery, way))
    if no_floors:
        yield LeftOut(name=f"{', '.join(_FLOORS)}, and all ratios to them", reason=no_floors)
    if no_native:
        yield LeftOut(name="drain-snapshot-*-native, cpu-*-native", reason=no_native)
    for name, rates in bare.items():
        yield Result(name=name, value=median(rates), unit="/s")
    slower = list(map(min, bare["floor-read"], bare["floor-produce"])) if bare else []
    for delivery, target in _SHARES.items():
        by_python = found[delivery, "python"]
        if natively := found.get((delivery, "native")):
            rates = [each.rate for each in natively]
            name = f"drain-snapshot-{delivery}-native"
            if bare:
                yield _against(name, rates, slower, target)
                yield _against(f"{name}-to-both", rates, bare["floor-both-at-once"], _SHARES_OF_BOTH.get(delivery))
            faster = _FASTER if delivery == "transactional" else None
            yield _against(f"{name}-to-python", rates, [each.rate for each in by_python], faster)
            micros = median(each.cpu_micros for each in natively)
            yield at_most(f"cpu-{delivery}-native", micros, "µs/record", target=_CPU_MICROS[delivery])
        micros = median(each.cpu_micros for each in by_python)
        yield Result(name=f"cpu-{delivery}-python", value=micros, unit="µs/record")
    fastest = ways()[0]
    one, other = ([each.rate for each in found[name, fastest]] for name in ("transactional", "pipelined"))
    yield _against("drain-snapshot-transactional-to-pipelined", one, other, _OF_PIPELINED)


def marked(servers: Servers, size: "Size") -> Iterator[Result | LeftOut]:
    """Drains of goharvest's table, which marks and purges, natively and by Python in turn."""
    no_native = native_unavailable()
    found: dict[str, list[BatchDrain]] = {way: [] for way in ways()}
    for _ in range(size.rounds):
        for way, some in found.items():
            servers.fill(size.records)
            some.append(drain_in_process(servers, size.records, delivery="barrier", implementation=way))
    by_python = [each.rate for each in found["python"]]
    if no_native:
        yield LeftOut(name="drain-mark-barrier-to-python, cpu-mark-barrier-native", reason=no_native)
        yield Result(name="drain-mark-barrier-python", value=median(by_python), unit="/s")
        return
    yield _against("drain-mark-barrier-to-python", [each.rate for each in found["native"]], by_python, None)
    micros = median(each.cpu_micros for each in found["native"])
    yield at_most("cpu-mark-barrier-native", micros, "µs/record", target=_CPU_MICROS_MARKED)


def _in_process(servers: Servers, records: int, delivery: str, implementation: str) -> BatchDrain:
    servers.forget()
    return drain_in_process(servers, records, delivery=delivery, implementation=implementation)


def hot_key(servers: Servers, size: "Size") -> Iterator[Result]:
    """One key only, against many."""
    yield from _compared(servers, size, "drain-one-hot-key", keys=0)


def never_analyzed(servers: Servers, size: "Size") -> Iterator[Result]:
    """A table whose statistics say that it is empty."""
    yield from _compared(servers, size, "drain-never-analyzed", target=0.8, analyze=False)


def one_transaction(servers: Servers, size: "Size") -> Iterator[Result]:
    """A backlog that is one transaction, open when the last snapshot was taken; against the same in many."""
    records, rates, many = 5 * size.records, [], []
    for _ in range(size.rounds):
        many.append(_fresh(servers, records))
        servers.make_native()
        topic = _topic()
        with psycopg.connect(servers.dsn) as open_one:
            servers.insert(records, connection=open_one)
            servers.insert(1)
            drain_batches(
                servers, 1, delivery="transactional", checkpoint_topic=topic
            )  # its last snapshot lists the open one
            servers.settle()
            open_one.commit()
        rates.append(drain_batches(servers, records, delivery="transactional", checkpoint_topic=topic).rate)
    yield _against("drain-one-transaction", rates, many, 0.8)


def behind_kept(servers: Servers, size: "Size") -> Iterator[Result]:
    """A drain behind many records that were harvested and are kept; then the same while a writer has idled since."""
    records = size.records
    empty = [_fresh(servers, records) for _ in range(size.rounds)]
    servers.make_native()
    with psycopg.connect(servers.dsn) as idle:
        servers.insert(KEPT * size.records)
        servers.settle()
        kept = _drains_after_now(servers, records, size.rounds)
        live = _live_seconds(servers)
        polls = _poll_seconds(servers)
        servers.insert(_OWN_RECORDS, connection=idle)
        servers.insert(KEPT * size.records)
        servers.settle()
        beside = _drains_after_now(servers, records, size.rounds)
        beside_live = _live_seconds(servers)
        beside_polls = _poll_seconds(servers)
        dead = _dead_tuples(servers)
        servers.forget()
        topic = _topic()
        _begin_now(servers, topic)  # its last snapshot lists the idle one
        idle.commit()
    own = drain_batches(servers, _OWN_RECORDS, delivery="transactional", checkpoint_topic=topic).rate
    yield _against("drain-behind-kept", kept, empty, 0.9)
    yield _against("drain-beside-idle-writer", beside, kept, 0.9)
    yield at_least(
        "live-beside-idle-writer", 1 / beside_live, "/s", floor=1 / live, ratio=live / beside_live, target=0.9
    )
    yield at_most("poll-beside-idle-writer", beside_polls / polls, "times", target=1.25)
    yield at_most("dead-tuples", dead, "tuples", target=0)
    yield Result(name="own-records-of-idle-writer", value=_OWN_RECORDS / own, unit="s")


def _compared(
    servers: Servers, size: "Size", name: str, *, target: float = 0.9, keys: int = KEYS, analyze: bool = True
) -> Iterator[Result]:
    records, rates, usual = 5 * size.records, [], []
    for _ in range(size.rounds):
        usual.append(_fresh(servers, records))
        rates.append(_fresh(servers, records, keys=keys, analyze=analyze))
    yield _against(name, rates, usual, target)


def _fresh(servers: Servers, records: int, *, keys: int = KEYS, analyze: bool = True) -> float:
    servers.make_native()
    if not analyze:
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            for (segment,) in connection.execute(_SEGMENTS).fetchall():
                connection.execute(f"ALTER TABLE {segment} SET (autovacuum_enabled = off)")
    servers.insert(records, keys=keys)
    servers.settle(analyze=analyze)
    return drain_batches(servers, records, delivery="transactional").rate


def _drains_after_now(servers: Servers, records: int, rounds: int) -> list[float]:
    """Return the rates of drains of what is added after a subscription began."""
    found = []
    for _ in range(rounds):
        servers.forget()
        topic = _topic()
        _begin_now(servers, topic)
        servers.insert(records)
        servers.settle(analyze=False)
        found.append(drain_batches(servers, records, delivery="transactional", checkpoint_topic=topic).rate)
    return found


def _begin_now(servers: Servers, topic: str) -> None:
    config = HarvestConfig(
        data_source=servers.dsn,
        base_kafka_config={"bootstrap.servers": servers.bootstrap_servers},
        leadership="solo",
        delivery="transactional",
        start_from="now",
        checkpoint_topic=topic,
    )
    Harvest(config).drain(60)


def _live_seconds(servers: Servers) -> float:
    """Return how long it took to deliver what was written within a few seconds at a steady rate."""
    servers.forget()
    topic = _topic()
    _begin_now(servers, topic)
    config = HarvestConfig(
        data_source=servers.dsn,
        base_kafka_config={"bootstrap.servers": servers.bootstrap_servers},
        leadership="solo",
        delivery="transactional",
        checkpoint_topic=topic,
    )
    records = _LIVE_RATE * _LIVE_SECONDS
    with Harvest(config) as harvest:
        began = time.perf_counter()
        with psycopg.connect(servers.dsn, autocommit=True) as writer:
            for number in range(records // 10):
                servers.insert(10, connection=writer)
                time.sleep(max(0.0, began + (number + 1) * 10 / _LIVE_RATE - time.perf_counter()))
        while harvest.delivered_records < records:
            harvest.await_stopped(0.005)
        return time.perf_counter() - began


def _poll_seconds(servers: Servers) -> float:
    """Return the median seconds of a look that finds nothing."""
    config = HarvestConfig(data_source=servers.dsn, leadership="solo", source="snapshot", start_from="now")
    source = make_batch_source(config, OutboxTable.parse("outbox"), 0)
    try:
        source.open(None)
        seconds = []
        for _ in range(_POLLS):
            began = time.perf_counter()
            source.read(500)
            seconds.append(time.perf_counter() - began)
        return median(seconds)
    finally:
        source.close()


def _dead_tuples(servers: Servers) -> int:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        time.sleep(1.2)  # sessions report what they did once a second
        row = connection.execute(
            "SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname ~ '^outbox(_from_|_tail|$)'"
        ).fetchone()
    return int(row[0]) if row else 0


def _topic() -> str:
    return f"bench-{uuid4().hex[:8]}.checkpoint"


def _against(name: str, rates: list[float], others: list[float], target: float | None) -> Result:
    ratio = median(rate / other for rate, other in zip(rates, others, strict=True))
    return at_least(name, median(rates), "/s", floor=median(others), ratio=ratio, target=target)
