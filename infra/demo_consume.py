"""`make demo-consume`: three consumers count each flight once, while consumers are killed and frozen.

    flights ─► outbox ─► harvester ─► Kafka ─► three consumers ─► flight_counts
                                                  ▲ six times, a consumer is killed and another is frozen

Flights are written slowly until the last fault, so that every fault interrupts busy consumers.

Exit codes: 0 each flight was counted once; 1 a flight was not, or a part of the demo failed; 130 interrupted; 143
terminated. No process is left running.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from harvest_lib.errors import StackError
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from infra.consumers import ConsumerPool
from infra.demo.comparing import differences
from infra.demo.feeding import Feed, published_flights
from infra.demo.place import Place
from infra.demo.progress import Progress
from infra.demo.runner import DemoRun, in_a_place, run_demo, zero

KILLS = 6
MEMBERS = 3

_PER_SECOND = 5_000
_BATCH = 1_000
_COPY = """
COPY outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) FROM STDIN
"""
_SHOWN = ("origin", "dest", "carrier", "flight", "time_hour")
_COUNTED = "SELECT coalesce(sum(flights), 0)::bigint FROM flight_counts"
_NOTES = {
    "messages": "flights that were committed to the outbox",
    "effects": "counted, by key",
    "double_effects": "counted more than once",
    "missing_effects": "never counted",
    "kills": "consumers killed by SIGKILL, another started in their place",
    "freezes": "consumers frozen past their session, and thawed",
    "stale_fences_rejected": "commits of frozen consumers, refused",
}


class FlightFeed(Feed):
    """Writes the flights of 2013 into an outbox, 1,000 in a transaction; slowly until `load_rest` is called."""

    def __init__(self, place: Place, *, per_second: int) -> None:
        super().__init__("flights", self._load)
        self.by_key: Counter[str | None] = Counter()
        """Number of committed flights per key. The key is the aircraft; if it is unknown, carrier and flight."""
        self._place, self._pause = place, _BATCH / per_second

    def load_rest(self) -> None:
        """Write the remaining flights without pauses."""
        self._pause = 0.0
        self.wake()

    def _load(self) -> Iterator[float]:
        published = published_flights()
        with connect(self._place.dsn) as connection:
            while batch := list(islice(published, _BATCH)):
                keys = [row["tailnum"] or f"{row['carrier']}{row['flight']}" for row in batch]
                with translated(), connection.cursor() as cursor, cursor.copy(_COPY) as rows:
                    for key, row in zip(keys, batch, strict=True):
                        value = json.dumps({name: row[name] for name in _SHOWN})
                        rows.write_row(("now", self._place.topic, key, value, [], []))
                self.by_key.update(keys)
                yield self._pause


def run(folder: Path, place: Place, progress: Progress) -> dict[str, Any]:
    """Run the demo at `place`, and return its report. Raises HarvestError if a part of it fails."""
    flights = FlightFeed(place, per_second=_PER_SECOND)
    with DemoRun(folder, place, progress) as demo:
        demo.harvest(size=1, delivery="transactional")
        consumers = demo.consume("harvest_lib.examples.flight_counts", "--min-txn", "1", size=MEMBERS)
        progress.say(f"a harvester delivers flights exactly once, {MEMBERS} consumers count them")
        demo.start(flights)
        demo.wait(lambda: demo.ask(_COUNTED), "nobody counts")
        for number in range(1, KILLS + 1):
            began = time.monotonic()
            consumers.inject_faults(flights.by_key.total, lambda: demo.ask(_COUNTED))
            progress.say(
                f"{number} of {KILLS}: one was killed, one frozen; caught up after {time.monotonic() - began:.1f} s, "
                f"{demo.ask(_COUNTED):,} counted, {consumers.fenced} late commits refused",
                "bold red",
            )
        flights.load_rest()
        progress.say("the rest comes at once")
        demo.wait(lambda: flights.done, "the flights do not get into the outbox", next_step="read Postgres' log")
        demo.wait(
            lambda: demo.ask(_COUNTED) >= flights.by_key.total(),
            "not all flights were counted",
            evidence=lambda: f"{demo.ask(_COUNTED):,} of {flights.by_key.total():,}",
        )
        consumers.stop()
        report = _report(flights, consumers, place)
    return {**report, "wall_seconds": round(progress.seconds, 1)}


def _report(flights: FlightFeed, consumers: ConsumerPool, place: Place) -> dict[str, Any]:
    with connect(place.dsn) as connection:
        counts = {str(key): int(str(n)) for key, n in connection.execute("SELECT key, flights FROM flight_counts")}
    if not flights.by_key:
        raise StackError("no flights came", next_step="read the logs beside the report")
    found = differences(flights.by_key, counts)
    was_tested = consumers.kills > 0 and consumers.freezes > 0
    return {
        "ok": was_tested and not (found["duplicates"] or found["lost"]),
        "messages": flights.by_key.total(),
        "effects": found["rows"],
        "double_effects": found["duplicates"],
        "missing_effects": found["lost"],
        "kills": consumers.kills,
        "freezes": consumers.freezes,
        "stale_fences_rejected": consumers.fenced,
    }


def _tables(report: Mapping[str, Any]) -> list[Table]:
    table = Table(show_header=False, title="every flight, counted once")
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, note in _NOTES.items():
        shown = zero(report[name]) if name in {"double_effects", "missing_effects"} else f"{report[name]:,}"
        table.add_row(name.replace("_", " "), shown, note)
    table.add_row("wall time", f"{report['wall_seconds']:.1f} s", "servers' start included")
    return [table]


if __name__ == "__main__":
    sys.exit(run_demo("demo-consume", in_a_place(run), _tables))
