"""Archive and replay at three sizes, each ten times the one before: their rates, and whether a record costs the same.

Both start with the same outbox. The floor of the archive is a bare `COPY` of the same rows out of Postgres. That of the
replay is a plain Spark job from JDBC to Spark's Kafka sink, which keeps no order, cannot go on where it was, and writes
a record again when a task fails. `-flat` compares what a further record costs between the two larger sizes with what it
costs between the two smaller ones, in CPU time of our processes, which hardly depends on what else the machine does.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from harvest_lib.archive import archive_segments
from harvest_lib.local_stack.state import default_state
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.segments.segment_list import Segments
from tests.benchmarks.backlog import Servers
from tests.benchmarks.processes import Run, run_module
from tests.benchmarks.report import Result, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_SIZES = (1, 10, 100)
_SEGMENTS = 10
_MOST_DEARER = 1.25
_COPY = "COPY (SELECT * FROM outbox) TO STDOUT (FORMAT binary)"


def spark_replay(servers: Servers, size: "Size") -> Iterator[Result]:
    """Archive, then replay out of archive and outbox, as commands from start to end; all of it at each size."""
    archived: list[tuple[float, float]] = []
    replayed: list[Run] = []
    folder = Path(mkdtemp(prefix="archive-", dir=default_state()))
    try:
        for times in _SIZES:
            records = times * size.records
            _make_outbox(servers, records)
            copied = _copied(servers)
            archived.append(_archived(servers, str(folder / str(times))))
            target = _topic(servers)
            arguments = ["--subscription", "again", "--topic", f"{servers.topic}={target}"]
            archive = ["--archive", str(folder / str(times))]
            replayed.append(run_module(servers, records, "harvest_lib.spark.replay", *arguments, *archive))
        plain = run_module(servers, records, "tests.benchmarks.spark_plain_replay", _topic(servers))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    largest, (seconds, _) = replayed[-1], archived[-1]
    yield Result(name="spark-replay-records", value=records, unit="records")
    yield Result(name="archive", value=records / seconds, unit="/s", floor=records / copied, ratio=copied / seconds)
    yield Result(
        name="spark-replay",
        value=records / largest.seconds,
        unit="/s",
        floor=records / plain.seconds,
        ratio=plain.seconds / largest.seconds,
    )
    yield Result(name="spark-replay-memory", value=largest.megabytes, unit="MB")
    costs = [run.cpu_seconds for run in replayed]
    for name, reported in (("archive-cpu", [cpu for _, cpu in archived]), ("spark-replay-cpu", costs)):
        first, second = (
            (reported[at + 1] - reported[at]) / (_SIZES[at + 1] - _SIZES[at]) / size.records for at in (0, 1)
        )
        yield Result(
            name=f"{name}-slope", value=second * 1e6, unit="s/1,000,000", floor=first * 1e6, ratio=second / first
        )
        yield at_most(f"{name}-flat", second / first, "", target=_MOST_DEARER)


def _make_outbox(servers: Servers, records: int) -> None:
    servers.make_native()
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS outbox, outbox_parked, outbox_subscriptions, outbox_segments")
        connection.execute("DROP TABLE IF EXISTS outbox_parked_ids, outbox_replays")
        table = OutboxTable.parse("outbox")
        NativeTable(outbox=table, segment_size=max(1_000, records // _SEGMENTS)).create(connection)
        servers.insert(records)
        Segments(table).close_passed(connection)
    servers.settle()


def _archived(servers: Servers, url: str) -> tuple[float, float]:
    """Return the seconds, and those of CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        for _ in archive_segments(connection, OutboxTable.parse("outbox"), url):
            pass
    return time.perf_counter() - began, time.process_time() - cpu


def _copied(servers: Servers) -> float:
    began = time.perf_counter()
    with psycopg.connect(servers.dsn) as connection, connection.cursor().copy(_COPY) as copy:
        for _ in copy:
            pass
    return time.perf_counter() - began


def _topic(servers: Servers) -> str:
    own = replace(servers, topic=f"bench-replay-{uuid4().hex[:8]}")
    own.make_topic()
    return own.topic
