"""The comparison: every reader on the workload, then on a backlog, as a table and as results."""

from collections.abc import Callable, Iterator, Mapping
from statistics import median

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tests.benchmarks.approaches import tables
from tests.benchmarks.approaches.drain import drain
from tests.benchmarks.approaches.gaps import GapDetection
from tests.benchmarks.approaches.grace import GracePeriod
from tests.benchmarks.approaches.judge import Verdict
from tests.benchmarks.approaches.mark import MarkAndPurge
from tests.benchmarks.approaches.position import PositionOnly, PositionUnderXmin
from tests.benchmarks.approaches.race import race
from tests.benchmarks.approaches.reader import Reader
from tests.benchmarks.approaches.snapshot import Snapshot
from tests.benchmarks.approaches.transaction_id import TransactionIdAndPosition
from tests.benchmarks.backlog import Servers
from tests.benchmarks.report import Result, at_least, at_most

READERS: dict[str, Callable[[], Reader]] = {
    "position-only": PositionOnly,
    "position-under-xmin": PositionUnderXmin,
    "transaction-id": TransactionIdAndPosition,
    "grace-period": GracePeriod,
    "gap-detection": GapDetection,
    "snapshot": Snapshot,
    "mark": MarkAndPurge,
}

_FLOOR = "position-only"
"""There is no shorter way of reading pages."""

_NEVER = {
    "transaction-id": ("lost", "repeated"),
    "snapshot": ("lost", "reordered", "repeated"),
    "mark": ("lost", "reordered", "repeated"),
}
"""Faults that must not happen to the readers that a harvester can be built on; to the others they may."""


def measure(servers: Servers, *, records: int, rounds: int, seconds: float = 8.0) -> Iterator[Result]:
    """Race the readers for so many seconds, let each drain so many records; print it all, yield what is to be judged.

    Raises RuntimeError if position only lost nothing or transaction id put nothing out of order: the workload was then
    too tame for a 0 of the others to mean anything.
    """
    committed, verdicts = race(servers.dsn, {name: make() for name, make in READERS.items()}, seconds=seconds)
    if not verdicts["position-only"].lost or not verdicts["transaction-id"].reordered:
        raise RuntimeError(f"the workload of {committed} records did not tell the readers apart: {verdicts}")
    drains: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(rounds):
        tables.fill(servers.dsn, records)
        for name, make in READERS.items():
            drains[name].append(drain(servers.dsn, make(), records))
    tables.drop(servers.dsn)
    rates = {name: median(found) for name, found in drains.items()}
    _show(committed, verdicts, rates)
    for name, promises in _NEVER.items():
        for what in promises:
            yield at_most(f"approaches-{name}-{what}", getattr(verdicts[name], what), "records", target=0)
        ratio = rates[name] / rates[_FLOOR]
        yield at_least(f"approaches-{name}-drain", rates[name], "/s", floor=rates[_FLOOR], ratio=ratio)


def _show(committed: int, verdicts: Mapping[str, Verdict], rates: Mapping[str, float]) -> None:
    title = f"{committed:,} records committed by 16 writers on 8 keys, one more idle in a transaction"
    columns = ("lost", "reordered", "repeated", "stalled", "median wait", "empty polls", "drain", "ratio")
    table = Table("reader", *columns, title=title, box=SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, verdict in verdicts.items():
        table.add_row(
            name,
            f"{verdict.lost:,}",
            f"{verdict.reordered:,}",
            f"{verdict.repeated:,}",
            f"{verdict.stalled_seconds:.2f} s",
            f"{1_000 * verdict.median_wait_seconds:,.0f} ms",
            f"{verdict.empty_share:.0%}",
            f"{rates[name]:,.0f}/s",
            f"{rates[name] / rates[_FLOOR]:.2f}",
        )
    Console(width=120).print(table)
