"""Signals and output of commands: Ctrl-C, lost output, and text and numbers that are safe to print."""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from math import isfinite
from typing import Any

import typer

from harvest_lib.errors import HarvestError, OutputLost

_ENDING = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Install handlers that call `stop` at the first SIGTERM or Ctrl-C. Later signals are ignored."""

    def ask_to_stop(*_: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the handling of the first
        stop()

    for number in _ENDING:
        signal.signal(number, ask_to_stop)


@contextmanager
def unread_output() -> Iterator[None]:
    """Drop further output if the reader of standard output stops reading, as `head` does. The exit code does not
    change."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich raises SystemExit for a broken pipe
        _drop_output()


@contextmanager
def checked_output() -> Iterator[None]:
    """Make standard output raise OutputLost if it cannot be written. If the reader has closed the pipe, a write raises
    BrokenPipeError as usual."""
    if sys.stdout is None:  # standard output was closed before the process began
        yield
        return
    output = _Checked(sys.stdout)
    try:
        with redirect_stdout(output):
            yield
    finally:
        if output.has_failed:
            _drop_output()


class _Checked:
    """A text stream that raises OutputLost if its file cannot be written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._checked():
            return int(self._stream.write(text))

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.has_failed = True
            if error.errno == errno.EPIPE:
                raise
            raise OutputLost(
                f"the output cannot be written: {error.strerror}",
                evidence="standard output",
                next_step="make room there or redirect it to another place, and run the command again; a command that "
                "changes something may have done so",
            ) from error


def _drop_output() -> None:
    """Redirect standard output to the null device. Buffered output, which Python flushes when the process ends, is
    dropped too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: HarvestError) -> None:
    """Print an error to standard error: the cause, the evidence and the next step."""
    first, *rest = (printable(line) for line in str(error).split("\n"))
    typer.echo("\n".join([f"{typer.style('error:', fg=typer.colors.RED)} {first}", *rest]), err=True)


def watched() -> bool:
    """Return True if standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown", ""}


def printable(text: str) -> str:
    """Return a text with all unprintable characters escaped, because such characters could move the cursor or look like
    another line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as standard JSON. A number that JSON cannot represent becomes a text, such as "inf"."""
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
    """Return a duration as text in its largest unit, rounded down."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun in singular or plural, as in "1 record" or "1,200 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
