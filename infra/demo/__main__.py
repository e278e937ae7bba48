"""`make demo`: Spark writes, the harvester delivers, its leader is killed twice, an audit proves it; once more, exactly
once; then in Dagster.

With OPEN=1 Dagster's page is opened at the end and stays until Ctrl-C. On servers that the user named there is no
third act: Dagster's tables are nothing to leave there.

Exit codes: 0 nothing was lost, reordered or unexplained, exactly once nothing came twice, two successors took over in
each act, and in Dagster all assets were made and all checks pass; 1 otherwise, or something failed; 130 interrupted,
and 143 terminated, with nothing left running.
"""

import os
import signal
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack.state import default_state
from infra.demo.page import write
from infra.demo.progress import Progress, summary, verdicts
from infra.demo.proof import proof
from infra.demo.run import run
from infra.interruption import Interrupted, interrupt_on_signals, show_error


def main() -> int:
    """Run the demo, show its result, and return the exit code."""
    interrupt_on_signals()
    state, console = default_state(), Console(highlight=False)
    report: dict[str, Any] = {}
    try:
        with Progress(console) as progress:
            report = run(state, progress)
            write(report, state / "demo")
            if any(map(os.environ.get, ("HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS"))):
                progress.say("no third act on your own servers: Dagster's tables are nothing to leave there")
            else:
                _third_act(state, progress, report)
    except Interrupted as interruption:
        _show(console, report, state)
        console.print("interrupted: everything that was started has been stopped")
        return interruption.exit_code
    except HarvestError as error:
        _show(console, report, state)
        show_error(error)
        return 1
    _show(console, report, state)
    return 0 if report["ok"] else 1


def _third_act(state: Path, progress: Progress, report: dict[str, Any]) -> None:
    with proof(state, progress) as seen:
        report |= {"dagster": seen.document(), "ok": report["ok"] and seen.ok}
        write(report, state / "demo")
        if os.environ.get("OPEN") == "1":
            _stay_open(seen.url, progress)


def _show(console: Console, report: Mapping[str, Any], state: Path) -> None:
    """Show the result as far as there is one, and its files."""
    if not report:
        return
    console.print(summary(report))
    if "dagster" in report:
        console.print(verdicts(report["dagster"]))
    for file in sorted((state / "demo").glob("report.*")):
        console.print(f"  {_shown(file)}", soft_wrap=True)


def _stay_open(url: str, progress: Progress) -> None:
    """Show Dagster's page until somebody has seen enough and presses Ctrl-C; from then on it ends undisturbed."""
    try:
        if any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):  # else a browser would take the terminal
            webbrowser.open(f"{url}/asset-groups")
        progress.say(f"Dagster stays at {url}/asset-groups until Ctrl-C", "bold")
        signal.pause()
    except Interrupted as interruption:
        if interruption.number != signal.SIGINT:
            raise


def _shown(file: Path) -> str:
    return os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file)


if __name__ == "__main__":
    sys.exit(main())
