"""Measure on a stack of our own, print a table, and write `bench/report.json` in the state folder."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from infra.local import Stack
from infra.local.state import default_state
from tests.benchmarks import floors
from tests.benchmarks.backlog import Servers
from tests.benchmarks.drain import Drain, drain

_TITLE = "200-byte values, 10,000 keys, 8 partitions, lz4"

_OF_FLOOR = 0.5
"""A drain marks and purges as the floor does, and delivers in between, behind the key barrier."""

_STATEMENTS = 12.0
"""Per 1,000 records, as tests/integration/test_counts.py has it; marked and purged singly it would be 1,001."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the report. `ratio` is to `floor`, `target` of the ratio, or of the value where there is no floor."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    ratio: float | None = None
    target: float | None = None
    met: bool | None = None


def measure(servers: Servers, records: int, rounds: int) -> list[Result]:
    """Measure everything `rounds` times, in turn, and return medians; ratios are taken within a round."""
    tables: list[float] = []
    kafkas: list[float] = []
    drains: list[Drain] = []
    for _ in range(rounds):
        servers.fill(records)
        tables.append(floors.mark_and_purge(servers, records))
        kafkas.append(floors.produce(servers, records))
        servers.fill(records)
        drains.append(drain(servers, records))
    rate, statements = median(each.rate for each in drains), median(each.statements for each in drains)
    of_table = median(each.rate / floor for each, floor in zip(drains, tables, strict=True))
    of_kafka = median(each.rate / floor for each, floor in zip(drains, kafkas, strict=True))
    return [
        Result(name="floor: mark and purge", value=median(tables), unit="records/s"),
        Result(name="floor: produce", value=median(kafkas), unit="records/s"),
        Result(
            name="drain, of mark and purge",
            value=rate,
            unit="records/s",
            floor=median(tables),
            ratio=of_table,
            target=_OF_FLOOR,
            met=of_table >= _OF_FLOOR,
        ),
        Result(name="drain, of produce", value=rate, unit="records/s", floor=median(kafkas), ratio=of_kafka),
        Result(
            name="drain, statements",
            value=statements,
            unit="per 1,000 records",
            target=_STATEMENTS,
            met=statements <= _STATEMENTS,
        ),
    ]


def show(results: Sequence[Result], console: Console) -> None:
    """Print the table."""
    table = Table("measured", "", "unit", "ratio", "target", "", title=_TITLE)
    table.columns[1].justify = "right"
    for result in results:
        value = f"{result.value:,.0f}" if result.floor is not None or result.target is None else f"{result.value:,.1f}"
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[result.met]
        table.add_row(
            result.name, value, result.unit, ratio, "" if result.target is None else f"{result.target:g}", met
        )
    console.print(table)


def write(results: Sequence[Result], path: Path) -> None:
    """Write the report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


def main() -> None:
    """Read the command line and do all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="records per measurement (default 100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind, in turn (default 3)")
    arguments = parser.parse_args()
    console, folder = Console(), default_state() / "bench"
    with console.status("starting Postgres and Kafka"), Stack(folder, fresh=True, parts=default_state()) as stack:
        topic = f"bench-{uuid4().hex[:8]}"  # outside servers may have one of an earlier run
        servers = Servers(dsn=stack.dsn, bootstrap_servers=stack.bootstrap_servers, topic=topic)
        servers.make_topic()
        with console.status(f"{arguments.rounds} rounds of {arguments.records:,} records"):
            results = measure(servers, arguments.records, arguments.rounds)
    show(results, console)
    write(results, folder / "report.json")
    console.print(f"written to {folder / 'report.json'}")


if __name__ == "__main__":
    main()
