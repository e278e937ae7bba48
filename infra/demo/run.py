"""The first two acts of `make demo`, with the same flights and the same kills, on the same Postgres and Kafka.

    Spark ─► goharvest's outbox ─► pool: Kafka elects (NELI), mark and purge ─► topic ─► audit
    SQL   ─► native outbox ──────► pool: Postgres elects, exactly once ───────► topic ─► audit
                                   the leader is killed, twice in each

A kill waits for two conditions: enough records are delivered, and a backlog exists, so that the failover does not
include time spent waiting for rows. On any machine both conditions hold at the latest just after a month was
committed. Every process that is started here ends with the act.
"""

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import libversion

from harvest_lib.audit import AuditReport, audit, read_query, read_topics
from harvest_lib.errors import StackError
from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.java import find_java, java_major
from harvest_lib.local_stack.state import default_state, make_folder
from harvest_lib.postgres.database import connect
from infra.demo.copying import Copying
from infra.demo.counting import Counting
from infra.demo.loading import FLIGHTS, Loading
from infra.demo.place import Place, is_delivered, made, native
from infra.demo.pool import SIZE, DemoPool
from infra.demo.progress import Progress, View
from infra.demo.report import KILLS, Kill, Sample, Seen, document, whole
from infra.demo.runner import DemoRun, servers

COMMITTED = "SELECT flight_id, coalesce(tail_number, carrier || flight) FROM flights"

_KILL_AT = (0.25, 0.6)
"""Fractions of all flights that must be delivered before the first and the second kill."""
_LATE = 0.15
"""After this additional fraction, a backlog of one record is enough for a kill."""

_RATE_SECONDS = 1.0
_STALL_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act: its names and addresses, the writer of its outbox, and the folder of its logs."""

    place: Place
    settings: Mapping[str, Any]
    """Additional settings of its harvesters."""
    writing: Loading | Copying
    folder: Path
    exactly_once: bool
    enough_backlog: int
    """Number of waiting records that a kill requires."""
    tick_seconds: float


def run(folder: Path, progress: Progress) -> dict[str, Any]:
    """Run both acts, and return their report. Raises HarvestError if a part of an act fails."""
    with servers(folder, progress) as stack, made(stack) as place:
        first = make_folder(folder / "at-least-once")
        progress.say(
            f"first act, goharvest's way: {SIZE} harvesters; Kafka elects a leader; mark, send and purge", "bold"
        )
        marked = _acted(
            Act(
                place=place,
                settings={},
                writing=Loading(place, first),
                folder=first,
                exactly_once=False,
                enough_backlog=2_000,
                tick_seconds=0.2,
            ),
            progress,
        )
        with native(place) as beside:
            progress.say("second act, exactly once: the same flights, another outbox, and Postgres elects", "bold")
            exact = _acted(
                Act(
                    place=beside,
                    settings={"limits": {}},  # the defaults
                    writing=Copying(beside),
                    folder=make_folder(folder / "exactly-once"),
                    exactly_once=True,
                    enough_backlog=8_000,
                    tick_seconds=0.05,
                ),
                progress,
            )
        versions = _versions(stack, place)
    return whole(marked, exact, versions=versions, wall_seconds=progress.seconds)


def _acted(act: Act, progress: Progress) -> dict[str, Any]:
    """Run harvesters until all records are delivered, audit them, and return the report of the act."""
    began, wall = time.time(), time.monotonic()
    with DemoRun(act.folder, act.place, progress) as demo:
        demo.start(act.writing)
        pool = demo.harvest(**act.settings)
        delivery = WatchedDelivery(act, pool, progress)
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


class WatchedDelivery:
    """Watches the delivery of the flights from Postgres to Kafka, and kills the leader during it."""

    def __init__(self, act: Act, pool: DemoPool, progress: Progress) -> None:
        self.samples: list[Sample] = []
        self.kills: list[Kill] = []
        self._act = act
        self._pool = pool
        self._progress = progress
        self._counting = Counting(act.place)
        self._leader_id: UUID | None = None
        self._at_its_start = 0
        """Number of records in Kafka when the current term was first seen. More records show that the term delivers."""

    def watch(self) -> None:
        """Watch until all records are delivered. Raises HarvestError if a process ends by itself, or nothing is written
        or delivered for 120 s."""
        moved, place = time.monotonic(), self._act.place
        while True:
            tick = time.monotonic()
            before = self.samples[-1] if self.samples else None
            all_is_written = self._act.writing.done  # read before the sample, which then counts all rows
            sample = self._look()
            if before is None or (sample.committed, sample.in_kafka) != (before.committed, before.in_kafka):
                moved = tick
            elif (
                all_is_written
                and sample.in_kafka >= sample.committed
                and is_delivered(place.dsn, place.group, place.outbox)
            ):
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
        leader_id = self._pool.leader.leader_id if self._pool.leader else None
        if leader_id != self._leader_id:
            self._leader_id, self._at_its_start = leader_id, sample.in_kafka
        return sample

    def _kill_if_due(self, sample: Sample) -> None:
        leader, number = self._pool.leader, len(self.kills)
        if leader is None or number == KILLS or sample.in_kafka <= self._at_its_start:
            return
        part, backlog = sample.in_kafka / FLIGHTS, sample.committed - sample.in_kafka
        enough = self._act.enough_backlog if part < _KILL_AT[number] + _LATE else 1
        if part < _KILL_AT[number] or backlog < enough:
            return
        at = self._pool.kill(leader)
        self.kills.append(Kill(at=at, victim=leader, in_kafka=sample.in_kafka, backlog=backlog))
        self._progress.say(f"SIGKILL to harvester {leader.harvester}, the leader, with {backlog:,} waiting", "bold red")

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
    """Compare the flights in Postgres with the records in Kafka, and return the report of the audit."""
    return audit(
        read_query(place.dsn, COMMITTED),
        chain.from_iterable(read_topics(place.kafka, [place.topic], id_header="event-id")),
        spill_directory=folder,
    )


def _versions(stack: Stack, place: Place) -> dict[str, str]:
    with connect(place.dsn) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    return {
        "Postgres": str(row[0]).split()[0] if row else "",
        "Kafka": stack.kafka.version if stack.kafka else "as given",
        "Java": str(java_major(find_java(default_state()))),
        "PySpark": version("pyspark"),
        "librdkafka": str(libversion()[0]),
        "Python": platform.python_version(),
        "outbox-harvester": version("outbox-harvester"),
        "cores": str(os.cpu_count()),
    }
