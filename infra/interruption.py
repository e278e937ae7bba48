"""A program that ends early, by a signal or an error."""

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
    """From now on the first signal raises Interrupted; later signals do nothing, so as not to disturb the end."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def exit_code_of(work: Callable[[], object], console: Console) -> int:
    """Do the work, and return the exit code of the program: 0, 1 after a HarvestError, or the exit code of a signal."""
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
    """Print the error on standard error."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    errors.print(Text("error: ", style="red").append(Text(str(error), style="not red")))
