"""The terminal: whether it can redraw a line, how foreign text is made safe to print, and Ctrl-C."""

import os
import signal
import sys
from collections.abc import Callable

_ENDING = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or Ctrl-C."""

    def ask_to_stop(*_: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # once is enough, and a second one must not interrupt the first
        stop()

    for number in _ENDING:
        signal.signal(number, ask_to_stop)


def end_on_signals() -> None:
    """Have SIGTERM and Ctrl-C end the process again, as they do by default."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def watched() -> bool:
    """Tell whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown", ""}


def printable(text: str) -> str:
    """Return foreign text with what could move the cursor, or pass for another line, spelled out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def age(seconds: float) -> str:
    """Return a length of time in its largest unit, rounded down."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
