"""One demo from end to end: two acts with the same flights and the same kills, on one Postgres and one Kafka.

    Spark ─► goharvest's outbox ─► pool: Kafka elects (NELI), mark and purge ─► topic ─► audit
    SQL   ─► native outbox ──────► pool: Postgres elects, exactly once ───────► topic ─► audit
                                   the leader is killed, twice in each

A kill waits for two conditions: enough is delivered, and there is a backlog, so that the failover does not include time
spent waiting for rows. On a slow or a fast machine alike they come true right after a month was committed at the
latest. Every process started here ends with it.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from confluent_kafka import libversion

from harvest_lib.audit import AuditReport, audit, read_query, read_topics
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect
from harvest_lib.errors import StackError
from harvest_lib.harvester.status import StatusReader
from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.java import find_java, java_major
from harvest_lib.local_stack.state import make_folder, write_private
from infra.demo.copying import Copying
from infra.demo.counting import Counting
from infra.demo.loading import FLIGHTS, Loading
from infra.demo.place import Place, made, native
from infra.demo.pool import SIZE, Pool
from infra.demo.progress import Progress, View
from infra.demo.report import KILLS, Kill, Sample, Seen, document, whole

COMMITTED = "SELECT flight_id, coalesce(tail_number, carrier || flight) FROM flights"

_KILL_AT = (0.25, 0.6)
"""Delivered parts of the whole at which the leader is killed."""
_LATE = 0.15
"""So much later than planned any backlog is enough."""

_RATE_SECONDS = 1.0
_STALL_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act: its place, configuration and writing, and the folder of its logs."""

    place: Place
    config: str
    writing: Loading | Copying
    folder: Path
    exactly_once: bool
    enough_backlog: int
    """A leader is killed while so many records wait."""
    tick_seconds: float


def run(state: Path, progress: Progress) -> dict[str, Any]:
    """Run a demo and return its report. Raises HarvestError when a part of it fails."""
    wall = time.monotonic()
    folder = make_folder(state / "demo")
    with ExitStack() as ending:
        stack = Stack(folder / "stack", fresh=True, parts=state)
        own = [name for name, server in (("Postgres", stack.postgres), ("Kafka", stack.kafka)) if server]
        progress.say(f"starting {' and '.join(own)}" if own else "using the servers named in the environment")
        ending.enter_context(stack)
        _clear(folder)  # not before the stack is ours: another demo may be running
        place = ending.enter_context(made(stack))
        progress.say(
            f"first act, goharvest's way: {SIZE} harvesters, of which Kafka elects one, mark, send and purge", "bold"
        )
        first = make_folder(folder / "at-least-once")
        marked = _acted(
            Act(
                place=place,
                config=place.reaper_yaml(),
                writing=Loading(place, folder=first, state=state),
                folder=first,
                exactly_once=False,
                enough_backlog=2_000,
                tick_seconds=0.2,
            ),
            progress,
        )
        beside = ending.enter_context(native(place, is_ours=stack.kafka is not None))
        progress.say("second act, exactly once: the same flights, another outbox, and Postgres elects", "bold")
        exact = _acted(
            Act(
                place=beside,
                config=beside.reaper_yaml(limits={}),  # the defaults
                writing=Copying(beside),
                folder=make_folder(folder / "exactly-once"),
                exactly_once=True,
                enough_backlog=8_000,
                tick_seconds=0.05,
            ),
            progress,
        )
        versions = _versions(stack, place, state)
    return whole(marked, exact, versions=versions, wall_seconds=time.monotonic() - wall)


def _acted(act: Act, progress: Progress) -> dict[str, Any]:
    """Harvest until all is delivered, audit it, and return the report of the act."""
    began, wall = time.time(), time.monotonic()
    with ExitStack() as ending:
        file = act.folder / "harvest.yaml"
        write_private(file, act.config)
        ending.callback(file.unlink, missing_ok=True)  # holds a password
        pool = Pool(file, act.folder)
        ending.callback(pool.stop)
        ending.callback(act.writing.stop)
        act.writing.start()
        pool.start()
        delivery = Delivery(act, pool, progress)
        delivery.watch()
        stop_seconds = pool.end()
        progress.say("all delivered and the pool stopped; auditing Kafka against Postgres")
        found = audited(act.place, act.folder)
    seen = Seen(
        began=began,
        wall_seconds=time.monotonic() - wall,
        stop_seconds=stop_seconds,
        samples=delivery.samples,
        kills=delivery.kills,
        leads=pool.leads,
        months=act.writing.months,
        exactly_once=act.exactly_once,
    )
    return document(seen, found)


@dataclass(slots=True)
class _Work:
    """The term that leads, and the records in Kafka when it was first seen: it works once there is more."""

    leader: object = None
    in_kafka: int = 0


class Delivery:
    """Watch the flights go from Postgres to Kafka, and kill the leader on the way."""

    def __init__(self, act: Act, pool: Pool, progress: Progress) -> None:
        self.samples: list[Sample] = []
        self.kills: list[Kill] = []
        self._act = act
        self._pool = pool
        self._progress = progress
        self._counting = Counting(act.place)
        self._work = _Work()

    def watch(self) -> None:
        """Look on until all is delivered. Raises HarvestError when a process ends by itself, or nothing moves."""
        moved = time.monotonic()
        while True:
            tick = time.monotonic()
            before = self.samples[-1] if self.samples else None
            sample = self._look()
            if before is None or (sample.committed, sample.in_kafka) != (before.committed, before.in_kafka):
                moved = tick
            elif self._act.writing.done and sample.in_kafka >= sample.committed and self._outbox_is_empty():
                return
            elif tick - moved > _STALL_SECONDS:
                raise StackError(
                    f"nothing moved for {_STALL_SECONDS} s",
                    evidence=f"{sample.committed} committed, {sample.in_kafka} in Kafka, leader: {self._pool.leader}",
                    next_step="read the logs beside the report",
                )
            self._kill_if_due(sample)
            self._progress.show(self._view(sample))
            time.sleep(max(0.0, tick + self._act.tick_seconds - time.monotonic()))

    def _look(self) -> Sample:
        for month in self._act.writing.look():
            self._progress.say(f"{self._act.writing.writer} committed {month.batch}: {month.rows:,} flights")
        for lead in self._pool.look():
            self._progress.say(f"harvester {lead.harvester} leads, term {str(lead.leader_id)[:8]}", "green")
        sample = Sample(at=time.time(), committed=self._act.writing.rows, in_kafka=self._counting.count())
        self.samples.append(sample)
        leader = self._pool.leader
        if leader is None or leader.leader_id != self._work.leader:
            self._work = _Work(leader.leader_id if leader else None, sample.in_kafka)
        return sample

    def _kill_if_due(self, sample: Sample) -> None:
        leader, number = self._pool.leader, len(self.kills)
        if leader is None or number == KILLS or sample.in_kafka <= self._work.in_kafka:
            return
        part, backlog = sample.in_kafka / FLIGHTS, sample.committed - sample.in_kafka
        enough = self._act.enough_backlog if part < _KILL_AT[number] + _LATE else 1
        if part < _KILL_AT[number] or backlog < enough:
            return
        at = self._pool.kill(leader)
        self.kills.append(Kill(at=at, victim=leader, in_kafka=sample.in_kafka, backlog=backlog))
        self._progress.say(f"SIGKILL to harvester {leader.harvester}, the leader, with {backlog:,} waiting", "bold red")

    def _outbox_is_empty(self) -> bool:
        place = self._act.place
        config = HarvestConfig(data_source=place.dsn, leader_group_id=place.group, outbox_table=place.outbox)
        with connect(place.dsn) as connection:
            return StatusReader(connection, config).waiting().is_empty

    def _view(self, sample: Sample) -> View:
        ticks = round(_RATE_SECONDS / self._act.tick_seconds)
        earlier = self.samples[-min(len(self.samples), ticks + 1)]
        seconds, leader = sample.at - earlier.at, self._pool.leader
        return View(
            committed=sample.committed,
            delivered=min(sample.in_kafka, sample.committed),
            backlog=max(0, sample.committed - sample.in_kafka),
            records_per_second=(sample.in_kafka - earlier.in_kafka) / seconds if seconds > 0 else 0.0,
            writer=self._act.writing.writer,
            months=len(self._act.writing.months),
            leader=leader.harvester if leader else None,
            kills=len(self.kills),
        )


def audited(place: Place, folder: Path) -> AuditReport:
    """Compare the flights that Postgres has with the records that Kafka has."""
    return audit(
        read_query(place.dsn, COMMITTED),
        chain.from_iterable(read_topics(place.kafka, [place.topic], id_header="event-id")),
        spill_directory=folder,
    )


def _clear(folder: Path) -> None:
    for path in folder.glob("report.*"):
        path.unlink()
    for act in ("at-least-once", "exactly-once"):
        shutil.rmtree(folder / act, ignore_errors=True)


def _versions(stack: Stack, place: Place, state: Path) -> dict[str, str]:
    def servers() -> Iterator[tuple[str, str]]:
        with connect(place.dsn) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        yield "Postgres", str(row[0]).split()[0] if row else ""
        yield "Kafka", stack.kafka.version if stack.kafka else "as given"

    return {
        **dict(servers()),
        "Java": str(java_major(find_java(state))),
        "PySpark": version("pyspark"),
        "librdkafka": str(libversion()[0]),
        "Python": platform.python_version(),
        "outbox-harvester": version("outbox-harvester"),
        "cores": str(os.cpu_count()),
    }
