"""The early end of a program, by a signal or an error."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from harvest_lib.errors import HarvestError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal requested the end of the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number


def interrupt_on_signals() -> None:
    """Make the first SIGINT, SIGTERM or SIGHUP raise Interrupted. Later signals are ignored, so that the program can
    clean up undisturbed."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def exit_code_of(work: Callable[[], object], console: Console) -> int:
    """Call `work`. Return the exit code: 0, 1 after a HarvestError, or 128 plus the number of a signal."""
    try:
        work()
    except Interrupted as interruption:
        console.print("interrupted: everything that was started has been stopped")
        return interruption.exit_code
    except HarvestError as error:
        show_error(error)
        return 1
    return 0


def show_error(error: HarvestError) -> None:
    """Print an error to standard error."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    errors.print(Text("error: ", style="red").append(Text(str(error), style="not red")))
