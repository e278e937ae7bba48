"""Growth of the drain's rate, and of the last record's wait, with the backlog and the number of shards; drawn.

The wait is that of the newest record of a backlog: from the commit that makes all of it visible until it is passed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

from harvest_lib.local_stack.state import default_state
from tests.benchmarks.backlog import Servers
from tests.benchmarks.large import drain_rate
from tests.benchmarks.report import Result

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_PARTS = (0.05, 0.2, 1, 5)
"""Backlogs, as multiples of the usual number of records."""
_SHARDS = (1, 2)
FILE = "curves.png"


def curves(servers: Servers, size: "Size") -> Iterator[Result]:
    """Measure each backlog with each number of shards, exactly once, and draw them beside the report."""
    found: dict[int, list[tuple[int, float]]] = {shards: [] for shards in _SHARDS}
    for part in _PARTS:
        for shards, rates in found.items():
            records = int(part * size.records)
            rates.append((records, drain_rate(servers, records, shards=shards)))
            yield Result(name=f"curve-{records}-records-{shards}-shards", value=rates[-1][1], unit="/s")
    _draw(found, default_state() / "bench" / FILE)


def _draw(found: dict[int, list[tuple[int, float]]], file: Path) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - once the backend is chosen

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    for shards, rates in found.items():
        sizes = [records for records, _ in rates]
        named = f"{shards} shard{'s' if shards > 1 else ''}"
        left.plot(sizes, [rate / 1_000 for _, rate in rates], marker="o", label=named)
        middle.plot(sizes, [records / rate for records, rate in rates], marker="o", label=named)
    largest: Sequence[float] = [rates[-1][1] / 1_000 for rates in found.values()]
    right.bar([str(shards) for shards in found], largest, color=["C0", "C1"])
    for axes, title, label in (
        (left, "Drain rate by backlog", "thousand records/s"),
        (middle, "Wait of the newest record by backlog", "seconds"),
    ):
        axes.set(title=title, xlabel="records in the backlog", ylabel=label, xscale="log")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    right.set(title=f"Drain rate of {sizes[-1]:,} records by shards", xlabel="shards", ylabel="thousand records/s")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)
    plt.close(figure)
