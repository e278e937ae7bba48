"""The rule for commands that destroy something: they ask on a terminal, and need --yes elsewhere.

A command calls `require_answer` before it connects, and `ask` when it knows what it would destroy.
"""

import sys
from typing import Annotated

import typer

from harvest_lib.cli.usage import Misuse

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Required without a terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done and change nothing.")]


class Unconfirmed(Misuse):
    """A command that destroys something was given neither --yes nor a terminal."""

    def __init__(self) -> None:
        super().__init__(
            "the command needs a confirmation",
            evidence="there is no terminal to ask, and no --yes",
            next_step="add --yes",
        )


def require_answer(*, yes: bool) -> None:
    """Raise Unconfirmed if the question cannot be asked and was not answered by --yes."""
    if not yes and not sys.stdin.isatty():
        raise Unconfirmed


def ask(question: str, *, yes: bool) -> None:
    """Ask a question on the terminal, unless --yes answers it. Raises typer.Abort for any answer but yes."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
