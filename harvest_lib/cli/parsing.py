"""Classes of commands that do not process options which were not given.

typer loads pydantic to process an option, even `--help` when it is absent. `harvest status --help` and `harvest
version` need no pydantic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

# Contexts are Any: typer has no public name for their type.


class Group(TyperGroup):
    """A group of commands. If its first argument is a subcommand, no option of the group was given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and process the group's own options only if there may be some."""
        if not args or args[0] not in self.commands:
            return super().parse_args(ctx, args)
        with _without_options(self):
            return super().parse_args(ctx, args)


class OptionlessCommand(TyperCommand):
    """A command whose only option is `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and process `--help` only if there are arguments."""
        if args:
            return super().parse_args(ctx, args)
        with _without_options(self):
            return super().parse_args(ctx, args)


@contextmanager
def _without_options(command: TyperCommand | TyperGroup) -> Iterator[None]:
    params, add_help_option = command.params, command.add_help_option
    command.params, command.add_help_option = [], False
    try:
        yield
    finally:
        command.params, command.add_help_option = params, add_help_option
