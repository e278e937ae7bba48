"""Commands and groups of commands: their help, and the options that need no processing.

typer imports pydantic to process an option, even if the option, such as `--help`, is not given. Because of this module,
`harvest status --help` and `harvest version` do not import pydantic.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from harvest_lib.cli.help_text import render
from harvest_lib.cli.usage import no_such_command

# Contexts are Any: typer has no public name for their type.


class Command(TyperCommand):
    """A command with plain help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of `help_text` instead of typer's boxes."""
        formatter.write(render(self, ctx))


class Group(TyperGroup):
    """A group of commands. If the first argument is a subcommand, the group's own options are not processed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of `help_text` instead of typer's boxes."""
        formatter.write(render(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Process the group's options only if the first argument is not a subcommand."""
        with _without_options(self, when=bool(args) and args[0] in self.commands):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command. Raises Misuse for an unknown one."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise no_such_command(ctx.command_path, args[0], self.commands)
        return super().resolve_command(ctx, args)


class OptionlessCommand(Command):
    """A command without options, except `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Process `--help` only if there are arguments."""
        with _without_options(self, when=not args):
            return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """A collection of commands with plain help."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **settings: Any
    ) -> Callable[[Any], Any]:
        """Return a decorator that adds a command, with the settings of typer."""
        return super().command(name, cls=cls, **settings)


def group(name: str, text: str) -> Commands:
    """Return a group of commands. Without a subcommand it prints its help."""
    return Commands(name=name, cls=Group, help=text, no_args_is_help=True, rich_markup_mode=None)


@contextmanager
def _without_options(command: TyperCommand | TyperGroup, *, when: bool) -> Iterator[None]:
    params, add_help_option = command.params, command.add_help_option
    if when:
        command.params, command.add_help_option = [], False
    try:
        yield
    finally:
        command.params, command.add_help_option = params, add_help_option
