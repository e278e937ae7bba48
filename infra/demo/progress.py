"""Output of a demo: its progress while it runs, and the table at its end.

A terminal shows a few live lines. Other outputs get a plain line every few seconds. Both show events, such as a month,
a term or a kill.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from infra.demo.loading import FLIGHTS
from infra.demo.report import ACTS, KILLS

DAY = "2013-01-01"
"""The day that the act in Dagster loads."""

_PLAIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """State of a run at one time. `writer` names the program that fills the outbox. `leader` is None if none leads."""

    writer: str
    committed: int
    delivered: int
    backlog: int
    records_per_second: float
    months: int
    leader: int | None
    kills: int


class Progress:
    """Shows the progress of a demo on a console; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._shown = self._began
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Begin the live display if the console is a terminal."""
        if self._console.is_terminal:
            # `show` refreshes it, not a thread: children that end with their parent thread are started while it runs.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the live display."""
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Print an event with the seconds since the start."""
        line = Text(f"{self.seconds:6.1f} s  ", style="dim")
        self._console.print(line.append(Text(text, style=style or "not dim")), soft_wrap=True)

    def show(self, view: View) -> None:
        """Show the state of a run; without a terminal, at most once every 3 s."""
        if self._live is not None:
            self._live.update(_panel(view), refresh=True)
        elif time.monotonic() - self._shown >= _PLAIN_SECONDS:
            self._shown = time.monotonic()
            self.say(
                f"{view.months:2} months committed, {view.delivered:,} delivered, {view.backlog:,} waiting, "
                f"{view.records_per_second:,.0f} records/s, {_leader(view)}"
            )


def _panel(view: View) -> Group:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(width=40)
    grid.add_column()
    grid.add_row(view.writer, _bar(view.committed), f"{view.committed:,} flights committed, {view.months} of 12 months")
    grid.add_row("Kafka", _bar(view.delivered), f"{view.delivered:,} delivered, {view.records_per_second:,.0f}/s")
    grid.add_row("waiting", _bar(view.backlog), f"{view.backlog:,} in the outbox")
    style = "green" if view.leader is not None else "bold red"
    grid.add_row("leader", Text(_leader(view), style=style), f"{view.kills} killed")
    return Group(Text(), grid)


def _bar(count: int) -> ProgressBar:
    return ProgressBar(total=FLIGHTS, completed=count, width=40)


def _leader(view: View) -> str:
    return f"harvester {view.leader} leads" if view.leader is not None else "nobody leads"


def summary(report: Mapping[str, Any]) -> Table:
    """Return the table at the end of the demo: both acts side by side."""
    acts = [report[name] for name in ACTS]
    table = Table(title="the same flights, the same kills: from Postgres to Kafka")
    table.add_column()
    table.add_column("goharvest's way", justify="right")
    table.add_column("exactly once", justify="right")
    table.add_column(style="dim")
    for line in lines(report):
        cells = [_cell(line, act) for act in acts]
        table.add_row(line.label, *cells, line.note)
    table.add_section()
    table.add_row("wall time", *(f"{act['wall_seconds']:.1f} s" for act in acts), "of each act, its audit included")
    table.add_row("", "", f"{report['wall_seconds']:.1f} s", "of both, start of the servers included")
    return table


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table. It shows the number under `key` in the report of an act. If `failover` is n > 0, it shows
    the number under `key` in the report of the n-th failover of the act."""

    label: str
    key: str
    note: str
    must_be_zero: bool = False
    failover: int = 0

    def of(self, act: Mapping[str, Any]) -> float | None:
        """Return the number in the report of an act; None if the act had no such failover."""
        if not self.failover:
            return act[self.key]  # type: ignore[no-any-return]  # every key has a number
        return next((each[self.key] for each in act["failovers"][self.failover - 1 :]), None)

    def text(self, act: Mapping[str, Any]) -> str:
        """Return the number as the table shows it."""
        number = self.of(act)
        if number is None:
            return "never"
        return f"{number:.1f} s" if self.failover else f"{number:,}"

    def is_good(self, act: Mapping[str, Any]) -> bool | None:
        """Return True if the number is as promised, False if it is not or is missing, None if nothing is promised."""
        number = self.of(act)
        if self.must_be_zero or (self.key == "duplicates" and act["exactly_once"]):
            return not number
        return False if number is None else None


def lines(report: Mapping[str, Any]) -> list[Line]:
    """Return the lines of the table."""
    repeated = "\n".join(explained(report[ACTS[0]])) or "none were in flight"
    failover = "from SIGKILL to the next record in Kafka"
    return [
        Line("committed", "committed", "flights in Postgres"),
        Line("delivered", "delivered", "of them in Kafka"),
        Line("lost", "lost", "committed, not in Kafka", must_be_zero=True),
        Line("reordered", "reordered", "first occurrences out of order", must_be_zero=True),
        Line("order violations", "order_violations", "any step back of a key, repeats included", must_be_zero=True),
        Line("duplicates", "duplicates", repeated),
        Line("unexplained duplicates", "unexplained_duplicates", "not sent again by a later term", must_be_zero=True),
        Line("unknown", "unknown", "in Kafka, never committed", must_be_zero=True),
        *(Line(f"failover {number}", "seconds", failover, failover=number) for number in range(1, KILLS + 1)),
        Line("records/s", "records_per_second", "first to last record, kills included"),
        Line("", "working_records_per_second", "while a leader was at work"),
        Line("rows/s written", "written_rows_per_second", "by Spark: staging and promotion; by SQL"),
    ]


def _cell(line: Line, act: Mapping[str, Any]) -> Text:
    good = line.is_good(act)
    return Text(line.text(act), style="" if good is None else "green" if good else "red")


def explained(act: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each term whose records a later term sent again, in the order of the earlier terms."""
    order = {term["leader"]: number for number, term in enumerate(act["terms"], start=1)}
    killed = {failover["leader"] for failover in act["failovers"]}
    return [
        f"{each['count']:,} in flight when a leader {'was killed' if each['old_leader'] in killed else 'gave up'}, "
        f"between term {order[each['old_leader']]} and {order[each['new_leader']]}"
        for each in sorted(act["explanations"], key=lambda each: order[each["old_leader"]])
    ]


def verdicts(dagster: Mapping[str, Any]) -> Table:
    """Return the table of the act in Dagster: every check with its verdict, failed runs, assets and the harvester."""
    table = Table(show_header=False, title=f"{DAY} in Dagster")
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for name, check in dagster["checks"].items():
        good = check["verdict"] == "passed"
        table.add_row(name, Text(check["verdict"], style="green" if good else "red"), check["description"])
    table.add_section()
    for failed in dagster["failed"]:
        table.add_row("run", Text("failed", style="red"), failed)
    missing = ", ".join(dagster["never_made"])
    table.add_row("assets", Text(missing or "all made", style="red" if missing else "green"), "")
    runs = dagster["daemon_runs"]
    table.add_row("harvester", Text("runs" if runs else "does not run", style="green" if runs else "red"), "")
    return table
