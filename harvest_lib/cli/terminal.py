"""The terminal: Ctrl-C, if it can redraw a line, and text and numbers that are safe and easy to read."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Any

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


@contextmanager
def unread_output() -> Iterator[None]:
    """Let a command print to a reader that goes away, as `head` does: the rest is dropped, and it exits as it would."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich ends the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed again as the process ends


def watched() -> bool:
    """Return True if standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown", ""}


def printable(text: str) -> str:
    """Return foreign text with characters that could move the cursor, or pass for another line, escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return JSON as every reader takes it. A number that JSON does not have, as from a document with 1e999, becomes
    text: "inf"."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_infinite(value), indent=indent, allow_nan=False)


def _without_infinite(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _without_infinite(each) for name, each in value.items()}
    return [_without_infinite(each) for each in value] if isinstance(value, list | tuple) else value


def age(seconds: float) -> str:
    """Return a length of time in its largest unit, rounded down."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def counted(number: int, noun: str) -> str:
    """Return a number of things, as in "1 record" or "1,200 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
