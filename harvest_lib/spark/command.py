"""Common parts of the jobs' command lines: options, output, and exit codes."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import pyspark

from harvest_lib.errors import ConfigError, HarvestError
from harvest_lib.spark.tested import require_tested

_INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """A parser that shows a module's docstring line by line, and raises ConfigError for unknown arguments."""

    def __init__(self, *, module: str, description: str | None, example: str) -> None:
        """Make the parser of `python -m module`; `example` is a line of its arguments."""
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            epilog=f"Example: %(prog)s {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_target(self) -> None:
        """Add the options of a job that writes into an outbox: database, outbox table, JDBC driver."""
        dsn = os.environ.get("HARVEST_DSN")
        self.add_argument(
            "--dsn",
            default=dsn,
            required=not dsn,
            help="libpq conninfo or URL, without a password: "
            "that is in PGPASSWORD or a passfile (default: $HARVEST_DSN)",
        )
        self.add_argument("--outbox", default="outbox", help="the outbox table; must exist (default: outbox)")
        self.add_argument(
            "--jdbc-jar", help="Postgres JDBC driver, commas between several (default: $HARVEST_SPARK_JARS)"
        )

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(message, next_step=f"see {self.prog} --help")


def tell(text: str) -> None:
    """Print a line and flush it: a process that reads the output acts on each line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(command: Callable[[], int | None], *, interrupted: str) -> int:
    """Run a command; return its exit code, 0 if it returns None. A Spark that is not tested is refused first.

    A HarvestError is printed, and its exit code returned. On an interrupt the text `interrupted` is printed, and 130 is
    returned. The text has the next step, or says what is unchanged.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a broken gateway is logged once, by the command
    try:
        require_tested(pyspark.__version__)
        return command() or 0
    except HarvestError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted: {interrupted}\n")
        return _INTERRUPTED
