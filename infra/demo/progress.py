"""What one sees while a demo runs, and the table at its end.

At a terminal a few live lines; elsewhere a plain line every few seconds. What happens (a month, a term, a kill) is
told either way.
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

DAY = "2013-01-01"
"""What the second act loads."""

_PLAIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One moment of a run. `leader` is None while nobody leads."""

    committed: int
    delivered: int
    backlog: int
    records_per_second: float
    months: int
    leader: int | None
    kills: int


class Progress:
    """Tell how it goes, on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._shown = self._began
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Take the terminal, if it is one."""
        if self._console.is_terminal:
            # Refreshed by us, not by a thread: children that end with their parent thread are started while it runs.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Tell of an event."""
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        self._console.print(line.append(Text(text, style=style or "not dim")), soft_wrap=True)

    def show(self, view: View) -> None:
        """Show a moment."""
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
    grid.add_row("Spark", _bar(view.committed), f"{view.committed:,} flights committed, {view.months} of 12 months")
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
    """Return the table that a demo ends with."""
    table = Table(show_header=False, title="every flight, from Spark to Kafka")
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")

    def zero(name: str, label: str, note: str) -> None:
        count = report[name]
        table.add_row(label, Text(f"{count:,}", style="red" if count else "green"), note)

    table.add_row("committed", f"{report['committed']:,}", "flights in Postgres")
    table.add_row("delivered", f"{report['delivered']:,}", "of them in Kafka")
    zero("lost", "lost", "")
    zero("reordered", "reordered", "first occurrences out of order")
    zero("order_violations", "order violations", "any step back of a key, repeats included")
    table.add_row("duplicates", f"{report['duplicates']:,}", "\n".join(explained(report)) or "none were in flight")
    zero("unexplained_duplicates", "unexplained duplicates", "")
    if report["unknown"]:
        zero("unknown", "unknown", "in Kafka, never committed")
    table.add_section()
    table.add_row("records/s", f"{report['records_per_second']:,}", "first to last record, kills included")
    table.add_row("", f"{report['working_records_per_second']:,}", "while a leader was at work")
    for number, failover in enumerate(report["failovers"], start=1):
        who = f"from harvester {failover['harvester']} to {failover['successor']}" if failover["successor"] else ""
        seconds = f"{failover['seconds']:.1f} s" if failover["seconds"] is not None else Text("never", style="red")
        table.add_row(f"failover {number}", seconds, f"from SIGKILL to the next record in Kafka,\n{who}")
    table.add_row("Spark rows/s", f"{report['spark_rows_per_second']:,}", "staging and promotion, without its start")
    table.add_row("wall time", f"{report['wall_seconds']:.1f} s", "servers' start and audit included")
    return table


def explained(report: Mapping[str, Any]) -> list[str]:
    """Say of the duplicates, term by term, where they come from."""
    order = {term["leader"]: number for number, term in enumerate(report["terms"], start=1)}
    killed = {failover["leader"] for failover in report["failovers"]}
    return [
        f"{each['count']:,} in flight when a leader {'was killed' if each['old_leader'] in killed else 'gave up'}, "
        f"between term {order[each['old_leader']]} and {order[each['new_leader']]}"
        for each in sorted(report["explanations"], key=lambda each: order[each["old_leader"]])
    ]


def verdicts(dagster: Mapping[str, Any]) -> Table:
    """Return the table of the second act: every check with what it says."""
    table = Table(show_header=False, title=f"{DAY} in Dagster")
    table.add_column(min_width=max(map(len, dagster["checks"]), default=0))
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
