"""`make demo-pipeline`: a table is copied and followed into Kafka, a second table and Parquet, through ten kills.

Exit codes: 0 each destination equals the source; 1 otherwise, or something failed; 130 interrupted, and 143 terminated,
with nothing left running.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import default_state, make_folder
from infra.demo.place import made
from infra.demo.progress import Progress
from infra.demo_pipeline.run import DemoPlan, run
from infra.interruption import Interrupted, interrupt_on_signals, show_error

_NAMES = {
    "events": "Kafka",
    "copy": "a second table",
    "lake": "Parquet",
}


def main() -> int:
    """Run the demo, show what came of it, and return the exit code."""
    interrupt_on_signals()
    state, console = default_state(), Console(highlight=False)
    folder = make_folder(state / "demo-pipeline")
    try:
        with Progress(console) as progress, Stack(folder / "stack", fresh=True, parts=state) as stack:
            for left in (folder / "pipeline", folder / "lake"):
                shutil.rmtree(left, ignore_errors=True)
            (folder / "pipeline.log").unlink(missing_ok=True)
            progress.say("Postgres and Kafka run")
            with made(stack) as place:
                report = run(folder, place, progress, DemoPlan())
    except Interrupted as interruption:
        console.print("interrupted: everything that was started has been stopped")
        return interruption.exit_code
    except HarvestError as error:
        show_error(error)
        return 1
    file = folder / "report.json"
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(_table(report))
    console.print(f"  {file}", soft_wrap=True)
    return 0 if report["ok"] else 1


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
    sys.exit(main())
