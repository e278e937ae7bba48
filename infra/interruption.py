"""A demo as a program: its report, or how it ended early, by a signal or an error."""

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console, RenderableType
from rich.text import Text

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack.state import default_state, make_folder
from infra.demo.progress import Progress

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number


def interrupt_on_signals() -> None:
    """From now on the first signal raises Interrupted, and the next ones do nothing: they must not disturb the end."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def show_error(error: HarvestError) -> None:
    """Tell on standard error."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    errors.print(Text("error: ", style="red").append(Text(str(error), style="not red")))


def run_demo(
    name: str, run: Callable[[Path, Progress], dict[str, Any]], shown: Callable[[Mapping[str, Any]], RenderableType]
) -> int:
    """Run a demo in the state folder, write its report below the folder of its name, show it, return the exit code."""
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
    file = make_folder(state / name) / "report.json"
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(shown(report))
    console.print(f"  {file}", soft_wrap=True)
    return 0 if report["ok"] else 1
