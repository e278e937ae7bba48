"""Command groups and commands that skip the processing of options that are not given.

typer imports pydantic to process an option, even if the option, such as `--help`, is not given. Because of this module,
`harvest status --help` and `harvest version` do not import pydantic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Contexts are Any: typer has no public name for their type.


class Group(TyperGroup):
    """A group of commands. If the first argument is a subcommand, the group's own options are not processed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Process the group's options only if the first argument is not a subcommand."""
        with _without_options(self, when=bool(args) and args[0] in self.commands):
            return super().parse_args(ctx, args)


class OptionlessCommand(TyperCommand):
    """A command without options, except `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Process `--help` only if there are arguments."""
        with _without_options(self, when=not args):
            return super().parse_args(ctx, args)


def group(name: str, text: str) -> typer.Typer:
    """Return a group of commands. Without a subcommand it prints its help."""
    return typer.Typer(name=name, cls=Group, help=text, no_args_is_help=True, rich_markup_mode="rich")


@contextmanager
def _without_options(command: TyperCommand | TyperGroup, *, when: bool) -> Iterator[None]:
    params, add_help_option = command.params, command.add_help_option
    if when:
        command.params, command.add_help_option = [], False
    try:
        yield
    finally:
        command.params, command.add_help_option = params, add_help_option
