"""One demo of consumers from end to end.

    flights ─► outbox ─► harvester ─► Kafka ─► three consumers ─► flight_counts
                                                  ▲ one is killed and another frozen, again and again

Flights come slowly until the last fault, so that every fault interrupts consumers that are busy.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from harvest_lib.database import connect
from harvest_lib.errors import StackError
from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.harvester import Harvester
from harvest_lib.local_stack.state import make_folder, write_private
from infra.consumers import SHORT_SESSION, ConsumerPool
from infra.demo.place import Place, made
from infra.demo.progress import Progress
from infra.demo_consume.flights import Flights
from infra.waiting import until

KILLS = 6
MEMBERS = 3

_PER_SECOND = 5_000
_WAIT_SECONDS = 120.0
_SESSION = ("--set", "session.timeout.ms=6000")


def run(state: Path, progress: Progress) -> dict[str, Any]:
    """Run a demo and return its report. Raises HarvestError when a part of it fails."""
    began = time.monotonic()
    folder = make_folder(state / "demo-consume")
    with ExitStack() as ending:
        stack = Stack(folder / "stack", fresh=True, parts=state)
        progress.say("starting Postgres and Kafka")
        ending.enter_context(stack)
        for log in folder.glob("*.log"):
            log.unlink()
        place = ending.enter_context(made(stack))
        flights = Flights(place, per_second=_PER_SECOND)
        consumers = ConsumerPool(
            "harvest_lib.examples.flight_counts",
            ["--topic", place.topic, "--min-txn", "1", *(SHORT_SESSION if stack.kafka else _SESSION)],
            variables={"HARVEST_DSN": place.dsn, "HARVEST_BOOTSTRAP_SERVERS": place.bootstrap_servers},
            folder=folder,
        )
        _start(place, folder, ending)
        ending.callback(consumers.stop)
        consumers.start(MEMBERS)
        progress.say(f"a harvester delivers flights exactly once, {MEMBERS} consumers count them")
        ending.callback(flights.stop)
        flights.start()
        _inject_faults(consumers, flights, place, progress)
        flights.load_rest()
        progress.say("the rest comes at once")
        _await_all(flights, place, folder)
        consumers.stop()
        report = _report(flights, consumers, place)
    return {**report, "wall_seconds": round(time.monotonic() - began, 1)}


def _start(place: Place, folder: Path, ending: ExitStack) -> None:
    config = folder / "reaper.yaml"
    write_private(config, place.reaper_yaml(delivery="transactional"))
    ending.callback(config.unlink, missing_ok=True)  # holds a password
    harvester = Harvester(1, config, folder)
    ending.callback(harvester.process.stop)
    harvester.start()


def _inject_faults(consumers: ConsumerPool, flights: Flights, place: Place, progress: Progress) -> None:
    until(lambda: _counted(place) > 0, _WAIT_SECONDS, "nobody counts", next_step="read the logs beside the report")
    for number in range(1, KILLS + 1):
        began = time.monotonic()
        consumers.inject_faults(flights.committed, lambda: _counted(place))
        progress.say(
            f"{number} of {KILLS}: one was killed, one frozen; caught up after {time.monotonic() - began:.1f} s, "
            f"{_counted(place):,} counted, {consumers.fenced} late commits refused",
            "bold red",
        )


def _await_all(flights: Flights, place: Place, folder: Path) -> None:
    until(lambda: flights.done, _WAIT_SECONDS, "the flights do not get into the outbox", next_step="read Postgres' log")
    until(
        lambda: _counted(place) >= flights.committed(),
        _WAIT_SECONDS,
        "not all flights were counted",
        evidence=lambda: f"{_counted(place):,} of {flights.committed():,}",
        next_step=f"read the logs in {folder}",
    )


def _counted(place: Place) -> int:
    with connect(place.dsn) as connection:
        try:
            row = connection.execute("SELECT coalesce(sum(flights), 0)::bigint FROM flight_counts").fetchone()
        except psycopg.errors.UndefinedTable:  # the first consumer makes it
            return 0
    return int(str(row[0])) if row else 0


def _report(flights: Flights, consumers: ConsumerPool, place: Place) -> dict[str, Any]:
    with connect(place.dsn) as connection:
        counts = {str(key): int(str(n)) for key, n in connection.execute("SELECT key, flights FROM flight_counts")}
    keys = counts.keys() | flights.by_key.keys()
    surplus = {key: counts.get(key, 0) - flights.by_key.get(key, 0) for key in keys}
    report = {
        "messages": flights.committed(),
        "effects": sum(counts.values()),
        "double_effects": sum(number for number in surplus.values() if number > 0),
        "missing_effects": -sum(number for number in surplus.values() if number < 0),
        "kills": consumers.kills,
        "freezes": consumers.freezes,
        "stale_fences_rejected": consumers.fenced,
    }
    if not report["messages"]:
        raise StackError("no flights came", next_step="read the logs beside the report")
    was_tested = consumers.kills > 0 and consumers.freezes > 0
    return {"ok": was_tested and not (report["double_effects"] or report["missing_effects"]), **report}
