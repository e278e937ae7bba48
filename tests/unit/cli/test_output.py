"""Output that cannot be written ends a command with an error of its own; a reader that goes away does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

HARVEST = [sys.executable, "-m", "harvest_lib.cli"]
AUDIT_OF_A_READER = """
import sys
from harvest_lib import cli
from harvest_lib.cli import tables, terminal

def audit(number: int) -> None:
    with terminal.unread_output():
        tables.print_table(tables.table_of([(str(each), "row") for each in range(number)]))

cli.app.command()(audit)
cli.main()
"""
"""A command that prints a table, as the audit does, of as many rows as it is asked for."""


FULL = Path("/dev/full")


def ended(command, **streams):
    """Return the exit code, and what the command says on standard error."""
    done = subprocess.run(command, check=False, text=True, **{"stderr": subprocess.PIPE, **streams})
    return done.returncode, done.stderr


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "command",
    [
        [*HARVEST, "version"],
        [*HARVEST, "run", "--help"],
        [sys.executable, "-c", AUDIT_OF_A_READER, "audit", "3"],
        [sys.executable, "-c", AUDIT_OF_A_READER, "audit", "3000"],
    ],
    ids=["text", "help", "table", "long table"],
)
def test_a_full_disk_is_named(command, unbuffered):
    with FULL.open("w") as full:
        code, said = ended(command, stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert code == 12
    cause, _, next_step = said.splitlines()  # and no traceback, not even as the process ends
    assert cause == "error: the output cannot be written: No space left on device"
    assert next_step.startswith("  next step: make room there or redirect it")


def test_the_exit_code_says_it_where_the_error_cannot_be_written():
    with FULL.open("w") as full:
        assert ended([*HARVEST, "version"], stdout=full, stderr=full) == (12, None)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("command", "code"),
    [([*HARVEST, "version"], 1), ([sys.executable, "-c", AUDIT_OF_A_READER, "audit", "3000"], 0)],
    ids=["text", "audit"],
)
def test_a_reader_that_goes_away_is_no_error(command, code, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        assert ended(command, stdout=gone, env=environment) == (code, "")


@pytest.mark.parametrize("command", [[*HARVEST, "version"], [sys.executable, "-c", AUDIT_OF_A_READER, "audit", "3"]])
def test_a_closed_output_is_no_output(command):
    assert ended(["sh", "-c", 'exec "$@" >&-', "sh", *command]) == (0, "")
