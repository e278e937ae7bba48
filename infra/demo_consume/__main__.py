"""`make demo-consume`: flights are counted exactly, while those who count are killed and frozen.

Exit codes: 0 each flight was counted once; 1 otherwise, or something failed; 130 interrupted, and 143 terminated, with
nothing left running.
"""

import sys
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from infra.demo_consume.run import run
from infra.interruption import run_demo

_NOTES = {
    "messages": "flights that were committed to the outbox",
    "effects": "counted, by key",
    "double_effects": "counted more than once",
    "missing_effects": "never counted",
    "kills": "consumers killed by SIGKILL, another started in their place",
    "freezes": "consumers frozen past their session, and thawed",
    "stale_fences_rejected": "commits of those who had been frozen, refused",
}


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
    sys.exit(run_demo("demo-consume", run, _table))
