"""The scenarios by name. Each measures its floor in the same run, in turn with what it measures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from tests.benchmarks import (
    batches,
    commit_log,
    consuming,
    curves,
    floors,
    history,
    idle,
    large,
    latency,
    pipeline,
    pools,
    spark_audit,
    spark_read,
    spark_replay,
    spark_sink,
    telemetry,
)
from tests.benchmarks.approaches import scenario as approaches
from tests.benchmarks.backlog import Servers
from tests.benchmarks.drain import drain
from tests.benchmarks.report import LeftOut, Result, at_least, at_most

_ONE_KEY_RECORDS = 500

_FAILOVER_SECONDS = 1.0
"""By the lock in Postgres, where the delivery fences the old leader: the slowest of the rounds."""

_STATEMENTS = 4.0
"""Per 1,000 records; marked and purged singly it would be 1,001."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a measurement."""

    records: int
    rounds: int


def _drains(delivery: str, target: float | None, *, times: int = 1) -> Callable[[Servers, Size], Iterator[Result]]:
    """Compare drains with a bare mark-and-purge loop that sends nothing."""
    name = f"drain-{delivery}" + (f"-{times}-fold" if times > 1 else "")

    def measure(servers: Servers, size: Size) -> Iterator[Result]:
        rates, ratios, floor_rates, statements = [], [], [], []
        records = times * size.records
        for _ in range(size.rounds):
            servers.fill(records)
            floor = floors.mark_and_purge(servers, records)
            servers.fill(records)
            done = drain(servers, records, delivery=delivery)
            rates.append(done.rate)
            floor_rates.append(floor)
            ratios.append(done.rate / floor)
            statements.append(done.statements)
        floor = median(floor_rates)
        yield at_least(name, median(rates), "/s", floor=floor, ratio=median(ratios), target=target)
        if target is not None:
            yield at_most(f"{name}-statements", median(statements), "/1,000", target=_STATEMENTS)

    return measure


def _one_key(servers: Servers, size: Size) -> Iterator[Result]:
    """Under the barrier one key sends a record per round trip: compare with that of a produce and its answer.

    Between two records of a key lies a purge, which is on disk before the next may leave, and while it is being written
    Kafka's threads go to sleep. The second line has both in its floor: a bare loop of a produce and a purge.
    """
    rates, ratios, bare_ratios, floor_rates, bare_rates = [], [], [], [], []
    for _ in range(size.rounds):
        produce, both = floors.round_trip(servers), floors.round_trip_and_purge(servers)
        servers.fill(_ONE_KEY_RECORDS, keys=0)
        rate = drain(servers, _ONE_KEY_RECORDS, delivery="barrier").rate
        rates.append(rate)
        floor_rates.append(1 / produce)
        ratios.append(rate * produce)
        bare_rates.append(1 / both)
        bare_ratios.append(rate * both)
    value = median(rates)
    yield at_least("one-key", value, "/s", floor=median(floor_rates), ratio=median(ratios), target=0.5)
    floor = median(bare_rates)
    yield at_least("one-key-and-purge", value, "/s", floor=floor, ratio=median(bare_ratios))


def _failover(servers: Servers, size: Size) -> Iterator[Result]:
    session = pools.SESSION_SECONDS
    seconds = pools.failover(servers)
    yield at_most("failover", seconds, "s", target=session + 1)
    seconds = pools.first_record(servers, lambda pool, lead: pool.kill(lead))
    yield at_most("failover-first-record", seconds, "s", target=session + 1)
    for delivery in ("transactional", "sequenced"):
        took = [
            pools.first_record(servers, lambda pool, lead: pool.kill(lead), delivery=delivery, leadership="postgres")
            for _ in range(size.rounds)
        ]
        yield at_most(f"failover-first-record-{delivery}-lock", max(took), "s", target=_FAILOVER_SECONDS)


def _hand_over(servers: Servers, size: Size) -> Iterator[Result]:
    yield at_most("hand-over", pools.hand_over(servers), "s", target=1.0)
    seconds = pools.first_record(servers, lambda pool, lead: pool.release(lead))
    yield at_most("hand-over-first-record", seconds, "s", target=1.0)


def _idle(servers: Servers, size: Size) -> Iterator[Result]:
    for table in idle.DEFAULTS:
        cost = idle.cost(servers, table)
        yield at_most(f"idle-cpu-{table}", cost.core_percent, "% core", target=1.0)
        yield at_most(f"idle-statements-{table}", cost.statements_per_second, "/s", target=30.0)


def _approaches(servers: Servers, size: Size) -> Iterator[Result]:
    yield from approaches.measure(servers, records=size.records, rounds=size.rounds)


SCENARIOS: dict[str, Callable[[Servers, Size], Iterator[Result | LeftOut]]] = {
    "drain-barrier": _drains("barrier", 0.5),
    "drain-pipelined": _drains("pipelined", 0.7),
    "drain-pipelined-2-fold": _drains("pipelined", 0.8, times=2),
    "drains-snapshot": batches.drains,
    "drains-mark": batches.marked,
    "one-hot-key": batches.hot_key,
    "never-analyzed": batches.never_analyzed,
    "one-transaction": batches.one_transaction,
    "behind-kept": batches.behind_kept,
    "latency": latency.latencies,
    "memory": large.memory,
    "memory-large": large.memory_of_large,
    "shards": large.shards,
    "curves": curves.curves,
    "one-key": _one_key,
    "sequencer": consuming.sequencer,
    "consumer": consuming.consumer,
    "pipeline": pipeline.pipeline,
    "commit-log": commit_log.commit_log,
    "spark-read": spark_read.spark_read,
    "spark-sink": spark_sink.spark_sink,
    "failover": _failover,
    "hand-over": _hand_over,
    "idle": _idle,
    "telemetry": telemetry.telemetry,
    "spark-audit": spark_audit.audit,
    "spark-replay": spark_replay.spark_replay,
    "approaches": _approaches,
    "history": history.check,
}

ONLY_WHEN_NAMED = {"approaches", "history"}
"""Scenarios that measure no part of the harvester, and so need not run each time."""
