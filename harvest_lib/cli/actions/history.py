"""Output of the verdict of `harvest audit history`."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harvest_lib.audit.checker import ANOMALIES, Finding, Verdict
from harvest_lib.audit.history.lines import to_line
from harvest_lib.audit.history.reader import BadLine
from harvest_lib.cli.actions.tables import print_table
from harvest_lib.cli.terminal import printable

_EVENTS_SHOWN = 8


_BAD_LINES_SHOWN = 20


def show_verdict(verdict: Verdict, bad: list[BadLine]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    said = "[green]the guarantee holds[/]" if verdict.ok and not bad else "[red]the guarantee does not hold[/]"
    if verdict.ok and bad:
        said = "[red]some lines could not be read[/]"
    elif not verdict.records:
        said = "[yellow]nothing was checked[/]"
    console.print(f"history of {verdict.events:,} events of {verdict.records:,} records: {said}")
    table = Table("anomaly", "explained", "unexplained")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in ANOMALIES:
        explained, unexplained = verdict.explained.get(name, 0), verdict.unexplained.get(name, 0)
        if explained or unexplained:
            table.add_row(name, f"{explained:,}", f"[{'red' if unexplained else 'green'}]{unexplained:,}[/]")
    if table.row_count:
        print_table(table)
    for finding in verdict.findings:
        if not finding.explained:
            _show_finding(console, finding)
    for line in bad[:_BAD_LINES_SHOWN]:
        console.print(Text(f"cannot be read: {printable(str(line))}"))
    if len(bad) > _BAD_LINES_SHOWN:
        console.print(f"… and {len(bad) - _BAD_LINES_SHOWN:,} more lines that cannot be read")


def _show_finding(console: Console, finding: Finding) -> None:
    console.print(Text.assemble((finding.name, "red"), f": {printable(finding.sentence)}"))
    for event in finding.events[:_EVENTS_SHOWN]:
        console.print(Text(f"    {printable(to_line(event).rstrip())}"))
    if len(finding.events) > _EVENTS_SHOWN:
        console.print(f"    … and {len(finding.events) - _EVENTS_SHOWN} more events")
