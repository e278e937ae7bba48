"""`harvest` as a person runs it: in this process where the process is not the subject, which saves a second each."""

import gc
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest.mock import patch

from harvest_lib.cli import main

COMMAND = [sys.executable, "-m", "harvest_lib.cli"]
SECONDS = 90
_OF_THE_INTERPRETER = ("PYTHON", "LANG", "LC_", "TERM", "COLUMNS", "TZ")


def run(arguments, environment, *, alone):
    """Run `harvest` with exactly this environment. `alone`: in a process of its own."""
    arguments = [os.fspath(each) for each in arguments]
    if alone or _needs_a_process(environment):
        return subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
        )
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        with _as_in_a_process(arguments, environment), redirect_stdout(stdout), redirect_stderr(stderr):
            code = _code()
        written = []
        for file in (stdout, stderr):
            file.seek(0)
            written.append(file.read())
    return subprocess.CompletedProcess(["harvest", *arguments], code, *written)


def _needs_a_process(environment):
    """Return True if a variable differs that the interpreter reads, which it does only where it starts."""
    names = {name for name in (*environment, *os.environ) if name.startswith(_OF_THE_INTERPRETER)}
    return any(environment.get(name) != os.environ.get(name) for name in names)


def _code():
    """Return the exit code of the command, as the interpreter would make it."""
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except Exception:  # noqa: BLE001 - as the interpreter does with any
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _as_in_a_process(arguments, environment):
    """Give the command what a process has of its own, and take back what it set for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        with (
            patch.dict(os.environ, environment, clear=True),
            patch.object(sys, "argv", ["harvest", *arguments]),
            patch.object(sys.modules["__main__"], "__package__", None),  # else usage errors name pytest
            patch.object(sys, "stdin", io.StringIO()),
        ):
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for number, handler in signals.items():
            signal.signal(number, handler)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
