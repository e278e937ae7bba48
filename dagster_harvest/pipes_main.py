"""Run a module as a program under Dagster Pipes: `python -m dagster_harvest.pipes_main MODULE ARGUMENTS…`.

Each line on standard output becomes a line of the run's log; a line with a JSON object also becomes a message. Lines on
standard error become errors in the log, and so does the traceback of an exception. MODULE needs no code for Dagster.
Java's output does not pass through Python; Dagster has it in the run's captured output.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from dagster_pipes import PipesContext, open_dagster_pipes

STDERR_VARIABLE = "HARVEST_PIPES_STDERR"
"""Name of the environment variable with the path of a file. The file gets a copy of standard error, so that the run's
failure can quote it."""

SUCCESS_CODES_VARIABLE = "HARVEST_PIPES_SUCCESS_CODES"
"""Name of the environment variable with the exit codes that are no failure, separated by commas. An audit that finds
anomalies ends with such a code."""

FRAMES_EXTRA = "harvest_frames"
"""Name of the extra with the declaration that `dagster_harvest.frame_job` reads."""


class Lines(io.TextIOBase):
    """A text stream that calls a function with each complete line."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._hear(line)
        return len(text)

    def close(self) -> None:
        if self._rest.strip():
            self._hear(self._rest)
        self._rest = ""


def main() -> int:
    """Run the module that the command line names; return its exit code."""
    module, *arguments = sys.argv[1:]
    said = os.environ.get(STDERR_VARIABLE)
    with open_dagster_pipes() as pipes:
        out, error = Lines(lambda line: _out(pipes, line)), Lines(lambda line: _error(pipes, line, said))
        sys.argv = [module, *arguments]
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as exit_:
                code = exit_.code
            except Exception:  # noqa: BLE001 - whatever the module raises is what the run says
                code = 1
                error.write(traceback.format_exc())
        out.close()
        error.close()
        if code is None or isinstance(code, int):
            is_well = str(code) in os.environ.get(SUCCESS_CODES_VARIABLE, "").split(",")
            return 0 if code is None or is_well else code
        _error(pipes, str(code), said)
        return 1


def _out(pipes: PipesContext, line: str) -> None:
    pipes.log.info(line)
    with contextlib.suppress(json.JSONDecodeError):
        message = json.loads(line)
        if isinstance(message, dict):
            pipes.report_custom_message(message)


def _error(pipes: PipesContext, line: str, said: str | None) -> None:
    pipes.log.error(line)
    if said:
        with contextlib.suppress(OSError), Path(said).open("a") as file:  # another machine does not have the folder
            file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
