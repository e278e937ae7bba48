"""`harvest history`: check the history of a run, and show the verdict."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harvest_lib.cli.options import AllowEmpty, Json
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.errors import FOUND_EXIT_CODE, NothingChecked

if TYPE_CHECKING:
    from rich.console import Console

    from infra.chaos.checker import AnomalyFinding, HistoryVerdict
    from infra.chaos.history.reader import BadLine

PromiseName = Literal["at_least_once", "transactional"]

_EVENTS_SHOWN = 8
_BAD_LINES_SHOWN = 20


def history(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, readable=True, help="JSON lines, one file per process."
        ),
    ],
    promise: Annotated[
        PromiseName, typer.Option(metavar="at_least_once|transactional", help="The guarantee of the delivery.")
    ],
    barrier: Annotated[
        bool,
        typer.Option("--barrier/--pipelined", help="With at_least_once: one record of a key in flight, or any number."),
    ] = True,
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N unexplained of each anomaly.")] = 5,
    allow_empty: AllowEmpty = False,
    as_json: Json = False,
) -> None:
    """Check a history: all writes, sends, acknowledgements, purges, reads and effects of all processes of a run
    (source checkout only).

    Anomalies have the names of Jepsen's Kafka workload. The page docs/history.md
    explains each, and what each guarantee allows. Duplicates that the guarantee
    allows count as explained.

    Exits with 0 if every anomaly is explained, 13 if one is not or a line could
    not be read, 10 if the files have no record, so that nothing was checked.

    Examples:

      harvest history run/*.jsonl --promise at_least_once

      harvest history run/*.jsonl --promise at_least_once --pipelined --json

      harvest history run/*.jsonl --promise transactional --show 1
    """
    from infra.chaos.checker import Promise, check
    from infra.chaos.history.reader import BadLine, read_history

    gc.freeze()
    gc.disable()  # the checker makes millions of objects and no cycles
    try:
        bad: list[BadLine] = []
        verdict = check(read_history(files, on_bad=bad.append), Promise(delivery=promise, barrier=barrier), keep=show)
    finally:
        gc.enable()
        gc.unfreeze()
    ok = verdict.ok and not bad and (verdict.records > 0 or allow_empty)
    if as_json:
        typer.echo(json_text({**verdict.to_json(), "ok": ok, "bad_lines": list(map(str, bad))}))
    else:
        show_verdict(verdict, bad)
    if bad or not verdict.ok:
        raise typer.Exit(FOUND_EXIT_CODE)
    if not ok:
        raise NothingChecked(
            "the history has no record, so nothing was checked",
            evidence=f"{len(files)} files, {verdict.events:,} events, 0 records",
            next_step="name the files of writers and readers; if a history may be empty, use --allow-empty",
        )


def show_verdict(verdict: "HistoryVerdict", bad: "list[BadLine]") -> None:
    """Print the counts of each anomaly, the unexplained findings, and the lines that could not be read."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from harvest_lib.cli.tables import print_table
    from infra.chaos.checker import ANOMALIES

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


def _show_finding(console: "Console", finding: "AnomalyFinding") -> None:
    from rich.text import Text

    from infra.chaos.history.lines import to_line

    console.print(Text.assemble((finding.name, "red"), f": {printable(finding.sentence)}"))
    for event in finding.events[:_EVENTS_SHOWN]:
        console.print(Text(f"    {printable(to_line(event).rstrip())}"))
    if len(finding.events) > _EVENTS_SHOWN:
        console.print(f"    … and {len(finding.events) - _EVENTS_SHOWN} more events")
