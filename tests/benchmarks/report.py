"""Results of a benchmark: one line per scenario, as a table for readers and as a list in a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from harvest_lib.cli.tables import print_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One scenario: a value, what it is compared with in the same run, and whether the target was met.

    `ratio` is that of value to `floor`, `ratios` the least and the greatest of the rounds. `target` is one of the
    ratio, if there is a ratio, else of the value.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    ratio: float | None = None
    ratios: tuple[float, float] | None = None
    target: float | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Lines that a scenario cannot measure on this machine, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {' '.join(self.reason.split())}"


def at_least(
    name: str,
    value: float,
    unit: str,
    *,
    floor: float,
    ratio: float,
    ratios: tuple[float, float] | None = None,
    target: float | None = None,
) -> Result:
    """A value that shall be as large a part of its floor as possible, at least `target`."""
    met = None if target is None else ratio >= target
    return Result(name=name, value=value, unit=unit, floor=floor, ratio=ratio, ratios=ratios, target=target, met=met)


def at_most(name: str, value: float, unit: str, *, target: float) -> Result:
    """A value that shall be as small as possible, at most `target`."""
    return Result(name=name, value=value, unit=unit, target=target, met=value <= target)


def show(results: Sequence[Result], console: Console) -> None:
    """Print the table."""
    table = Table(
        "scenario", "", "", "floor", "ratio", "target", "", title="200-byte values, 8 partitions, lz4", box=SIMPLE
    )
    table.columns[0].no_wrap = True
    for column in (1, 3, 4, 5, 6):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    for result in results:
        met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[result.met]
        target = "" if result.target is None else f"{'≥' if result.floor is not None else '≤'} {result.target:.4g}"
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        if result.ratios is not None:
            ratio += f" ({result.ratios[0]:.2f}-{result.ratios[1]:.2f})"
        table.add_row(result.name, _number(result.value), result.unit, _number(result.floor), ratio, target, met)
    print_table(table, console)


def write(results: Sequence[Result], path: Path) -> None:
    """Write the list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.2f}"
