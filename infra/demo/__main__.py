"""`make demo`: three acts. In the first, Spark writes, harvesters deliver, the leader is killed twice, and an audit
checks the result. The second delivers the same flights exactly once. The third runs in Dagster.

With OPEN=1 Dagster's page is opened at the end and stays until Ctrl-C. On servers that the user named there is no
third act, because Dagster would leave its tables there.

Exit codes: 0 no record was lost or reordered, every duplicate is explained, the second act had no duplicate, a standby
took over twice in each of these two acts, and in Dagster all assets were made and all checks pass; 1 one of these
conditions does not hold, or a part of the demo failed; 130 interrupted; 143 terminated. No process is left running.
"""

import os
import signal
import sys
import webbrowser
from pathlib import Path

from rich.table import Table

from infra.demo.page import write
from infra.demo.progress import Progress, summary, verdicts
from infra.demo.proof import proof
from infra.demo.run import run
from infra.demo.runner import Keep, Report, run_demo
from infra.interruption import Interrupted


def _conduct(folder: Path, progress: Progress, keep: Keep) -> None:
    report = run(folder, progress)
    keep(report)
    if any(map(os.environ.get, ("HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS"))):
        progress.say("no third act on your own servers: Dagster's tables are nothing to leave there")
        return
    with proof(folder / "dagster", progress) as seen:
        keep(report | {"dagster": seen.document(), "ok": report["ok"] and seen.ok})
        if os.environ.get("OPEN") == "1":
            _stay_open(seen.url, progress)


def _tables(report: Report) -> list[Table]:
    return [summary(report), *([verdicts(report["dagster"])] if "dagster" in report else [])]


def _stay_open(url: str, progress: Progress) -> None:
    """Show Dagster's page until the user presses Ctrl-C, which ends the demo normally."""
    try:
        if any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):  # else a browser would take the terminal
            webbrowser.open(f"{url}/asset-groups")
        progress.say(f"Dagster stays at {url}/asset-groups until Ctrl-C", "bold")
        signal.pause()
    except Interrupted as interruption:
        if interruption.number != signal.SIGINT:
            raise


if __name__ == "__main__":
    sys.exit(run_demo("demo", _conduct, _tables, write))
