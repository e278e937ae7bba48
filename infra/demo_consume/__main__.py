"""`make demo-consume`: flights are counted exactly, while those who count are killed and frozen.

Exit codes: 0 each flight was counted once; 1 otherwise, or something failed; 130 interrupted, and 143 terminated, with
nothing left running.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack.state import default_state
from infra.demo.progress import Progress
from infra.demo_consume.run import run
from infra.interruption import Interrupted, interrupt_on_signals, show_error

_NOTES = {
    "messages": "flights that were committed to the outbox",
    "effects": "counted, by key",
    "double_effects": "counted more than once",
    "missing_effects": "never counted",
    "kills": "consumers killed by SIGKILL, another started in their place",
    "freezes": "consumers frozen past their session, and thawed",
    "stale_fences_rejected": "commits of those who had been frozen, refused",
}


def main() -> int:
    """Run the demo, show what came of it, and return the exit code."""
    interrupt_on_signals()
    state, console = default_state(), Console(highlight=False)
    try:
        with Progress(console) as progress:
            report = run(state, progress)
    except Interrupted as interruption:
        console.print("interrupted: everything that was started has been stopped")
        return interruption.exit_code
    except HarvestError as error:
        show_error(error)
        return 1
    file = state / "demo-consume" / "report.json"
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(_table(report))
    console.print(f"  {file}", soft_wrap=True)
    return 0 if report["ok"] else 1


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(show_header=False, title="every flight, counted once")
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, note in _NOTES.items():
        style = "" if name not in {"double_effects", "missing_effects"} else "red" if report[name] else "green"
        table.add_row(name.replace("_", " "), Text(f"{report[name]:,}", style=style), note)
    table.add_row("wall time", f"{report['wall_seconds']:.1f} s", "servers' start included")
    return table


if __name__ == "__main__":
    sys.exit(main())
