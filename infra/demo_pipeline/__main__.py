"""`make demo-pipeline`: a table is copied and followed into Kafka, a second table and Parquet, through ten kills.

Exit codes: 0 each destination equals the source; 1 otherwise, or something failed; 130 interrupted, and 143 terminated,
with nothing left running.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import make_folder
from infra.demo.place import made
from infra.demo.progress import Progress
from infra.demo_pipeline.run import DemoPlan, run
from infra.interruption import run_demo

_NAMES = {
    "events": "Kafka",
    "copy": "a second table",
    "lake": "Parquet",
}


def _run(state: Path, progress: Progress) -> dict[str, Any]:
    folder = make_folder(state / "demo-pipeline")
    with Stack(folder / "stack", fresh=True, parts=state) as stack:
        for left in (folder / "pipeline", folder / "lake"):
            shutil.rmtree(left, ignore_errors=True)
        (folder / "pipeline.log").unlink(missing_ok=True)
        progress.say("Postgres and Kafka run")
        with made(stack) as place:
            return run(folder, place, progress, DemoPlan())


def _table(report: Mapping[str, Any]) -> Table:
    title = f"{report['rows']:,} rows of the source, after {report['changes']:,} changes and {report['kills']} kills"
    table = Table("", "rows", "differ", "messages", "repeats", "unexplained", title=title, box=SIMPLE)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "right"
    table.columns[0].justify = "left"
    for name, each in report["destinations"].items():
        counts = ((each["differences"], True), (each["messages"], False), (each["duplicates"], False))
        texts = [Text("-" if count is None else f"{count:,}", _style(count, judged)) for count, judged in counts]
        unexplained = each["unexplained_duplicates"]
        table.add_row(
            _NAMES[name], f"{each['rows']:,}", *texts, Text(f"{unexplained:,}", _style(unexplained, judged=True))
        )
    return table


def _style(count: int | None, judged: bool) -> str:  # noqa: FBT001 - a matter of looks
    return "" if not judged else "red" if count else "green"


if __name__ == "__main__":
    sys.exit(run_demo("demo-pipeline", _run, _table))
