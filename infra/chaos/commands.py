"""Runs commands of `harvest` as an operator does."""

import subprocess
import sys
from pathlib import Path

from harvest_lib.errors import StackError


def harvest(*arguments: str | Path) -> None:
    """Run a command of `harvest`. Raises StackError if its exit code is not 0."""
    command = [sys.executable, "-m", "harvest_lib.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StackError(
            f"`harvest {' '.join(map(str, arguments))}` failed",
            evidence=" | ".join(done.stderr.strip().splitlines()[-3:]),
            next_step="run it again, by hand",
        )
