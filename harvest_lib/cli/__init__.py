"""The command `harvest`.

Exit codes, for every command: 0 done; 1 a check found a problem (`audit`), or nothing is running (`ps`); 2 usage error;
3 configuration; 4 outbox table; 5 Postgres; 6 Kafka; 7 local stack; 8 checkpoint;
9 pipeline; 10 nothing was checked; 11 archive; 130 interrupted.
"""

# Help must be quick. The modules in this folder hold names, parameters and help of commands, and import only typer and
# the standard library at their top. The code that a command runs is in `actions`, a package that loads a module at its
# first use, or is imported in the command's function. tests/unit/cli/test_imports.py checks this for every command.

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import harvest_lib
from harvest_lib.cli import actions
from harvest_lib.cli.audit import audit
from harvest_lib.cli.check import check
from harvest_lib.cli.grants import app as grants
from harvest_lib.cli.init import init
from harvest_lib.cli.migrate import migrate
from harvest_lib.cli.park import app as park
from harvest_lib.cli.parsing import Group, OptionlessCommand
from harvest_lib.cli.partition import partition
from harvest_lib.cli.pipeline import app as pipeline
from harvest_lib.cli.pump import pump
from harvest_lib.cli.run import run
from harvest_lib.cli.segments import app as segments
from harvest_lib.cli.stack import app as stack
from harvest_lib.cli.status import status
from harvest_lib.cli.subscriptions import app as subscriptions
from harvest_lib.errors import HarvestError

_ROOT = Path(__file__).resolve().parents[2]
_CHECKOUT_ONLY = ("bench", "chaos", "history")


def _checkout_commands() -> tuple[Any, ...]:
    """Return the commands of `infra.cli` if this module is in a clone of the repository, else none."""
    found = find_spec("infra") if (_ROOT / "pyproject.toml").is_file() else None
    if found is None or found.origin is None or Path(found.origin).resolve() != _ROOT / "infra" / "__init__.py":
        return ()
    commands: tuple[Any, ...] = import_module("infra.cli").COMMANDS
    return commands


class _Harvest(Group):
    """The commands of `harvest`. A command that only a clone has is named as such where it is missing."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a usage error says where a missing one is to be had."""
        if args[0] in _CHECKOUT_ONLY and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"`harvest {args[0]}` is part of a source checkout only: clone the repository, run `make setup`.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="harvest",
    cls=_Harvest,
    help="Move a transactional outbox from Postgres to Kafka: in per-key order, losing nothing.",
    epilog="Exit codes: 0 done, 1 problem found, 2 usage, 3 configuration, 4 outbox table, 5 Postgres, 6 Kafka, "
    "7 local stack, 8 checkpoint, 9 pipeline, 10 nothing was checked, 11 archive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command in (init, migrate, check, run, status, audit, partition, pump, *_checkout_commands()):
    app.command()(_command)
for _group in (grants, park, pipeline, segments, subscriptions, stack):
    app.add_typer(_group)


def _print_version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"harvest {harvest_lib.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda asked: _print_version(asked=asked), is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command(cls=OptionlessCommand)
def version() -> None:
    """Print the versions of the harvester and of the client libraries for Kafka and Postgres.

    The last line tells whether records are handed over natively or by Python,
    and why.

    Example:  harvest version
    """
    typer.echo(f"harvest {harvest_lib.__version__}")
    typer.echo(actions.version.client_libraries())
    typer.echo(actions.version.hand_over())


def main() -> None:
    """Run the command line; a HarvestError becomes a message and an exit code."""
    try:
        app()
    except HarvestError as error:
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True, soft_wrap=True, highlight=False).print(Text.assemble(("error:", "red"), f" {error}"))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
