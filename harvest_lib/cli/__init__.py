"""The command `harvest`.

Exit codes, for every command: 0 done; 1 another error, a crash, or a question that was
not answered by yes; 2 usage error, or help without a command; 3 configuration;
4 outbox table; 5 Postgres; 6 Kafka; 7 local stack; 8 checkpoint; 9 pipeline;
10 nothing was checked; 11 archive; 12 output not written; 13 a check found a problem
(`audit`), or nothing is running (`ps`); 130 interrupted.
"""

# `--help` must be quick. At its top, a module that declares a command imports only typer, the standard library and
# light modules of harvest_lib. It imports other modules inside its functions. tests/unit/cli/test_imports.py checks
# this.

import shlex
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import harvest_lib
from harvest_lib.cli import (
    audit,
    check,
    config,
    consumer_grants,
    grants,
    init,
    migrate,
    park,
    partition,
    pipeline,
    pump,
    run,
    segments,
    stack,
    status,
    subscriptions,
    topics,
    try_out,
)
from harvest_lib.cli.confirmation import Unconfirmed
from harvest_lib.cli.parsing import Commands, Group, OptionlessCommand
from harvest_lib.cli.terminal import checked_output, report
from harvest_lib.cli.usage import Misuse, UsageProblem, problem
from harvest_lib.errors import HarvestError

_UsageError: Any = typer.BadParameter.__mro__[1]
"""Base of typer's errors in a command line, for which typer has no public name."""
_ROOT = Path(__file__).resolve().parents[2]
_CHECKOUT_ONLY = ("bench", "chaos", "history", "platform")


def _checkout_commands() -> tuple[Any, ...]:
    """Return the commands of `infra.cli` if this module is in a clone of the repository, else an empty tuple."""
    found = find_spec("infra") if (_ROOT / "pyproject.toml").is_file() else None
    if found is None or found.origin is None or Path(found.origin).resolve() != _ROOT / "infra" / "__init__.py":
        return ()
    commands: tuple[Any, ...] = import_module("infra.cli").COMMANDS
    return commands


class _Harvest(Group):
    """The commands of `harvest`. Some commands exist only in a clone of the repository."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command. If the command exists only in a clone, the usage error explains this."""
        if args[0] in _CHECKOUT_ONLY and args[0] not in self.commands and not ctx.resilient_parsing:
            raise Misuse(
                f"`harvest {args[0]}` is part of a source checkout only",
                next_step="clone the repository, and run `make setup` there",
            )
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Any = None,
        prog_name: Any = None,
        complete_var: Any = None,
        standalone_mode: Any = True,
        windows_expand_args: Any = True,
        **extra: Any,
    ) -> Any:
        """Run a command, and end the process with its exit code. A wrong command line is reported as every error is."""
        extra |= {"complete_var": complete_var, "windows_expand_args": windows_expand_args, "standalone_mode": False}
        if not standalone_mode:
            return super().main(args, prog_name or self.name, **extra)
        try:
            code = super().main(args, prog_name or self.name, **extra)
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(error, err=True)
            else:
                if isinstance(error, Unconfirmed):
                    given = sys.argv[1:] if args is None else args
                    error.next_step = f"write: {prog_name or self.name} {shlex.join(given)} --yes"
                report(problem(error))
            sys.exit(UsageProblem.exit_code)
        except typer.Abort:
            typer.echo("stopped: nothing was changed", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


app = Commands(
    name="harvest",
    cls=_Harvest,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Move a transactional outbox from Postgres to Kafka: in per-key order, losing nothing.",
    epilog="Exit codes: 0 done, 1 another error, 2 usage, 3 configuration, 4 outbox table, 5 Postgres, 6 Kafka, "
    "7 local stack, 8 checkpoint, 9 pipeline, 10 nothing was checked, 11 archive, "
    "12 output not written, 13 problem found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
grants.app.add_typer(consumer_grants.app)
_PANELS: dict[str, tuple[Any, ...]] = {
    "Set up": (config.app, init.init, check.check, migrate.migrate, grants.app, topics.app),
    "Run": (run.run, pipeline.app),
    "Operate": (status.status, partition.partition, subscriptions.app, park.app, segments.app),
    "Verify": (audit.audit,),
    "Local stack": (try_out.try_, stack.up, stack.down, stack.ps, stack.logs, pump.pump),
    "Development": _checkout_commands(),
}
for _panel, _members in _PANELS.items():
    for _member in _members:
        if isinstance(_member, typer.Typer):
            app.add_typer(_member, rich_help_panel=_panel)
        else:
            app.command(_member.__name__.rstrip("_"), rich_help_panel=_panel)(_member)


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


@app.command(cls=OptionlessCommand, rich_help_panel="Set up")
def version() -> None:
    """Print the versions of the harvester and of the client libraries for Kafka and Postgres.

    The last line names the hand-over in use, native or Python, and the reason.

    Example:  harvest version
    """
    import confluent_kafka
    from psycopg import pq

    from harvest_lib.native import implementation

    typer.echo(f"harvest {harvest_lib.__version__}")
    typer.echo(f"librdkafka {confluent_kafka.libversion()[0]}, libpq {pq.version_pretty(pq.version())}")
    chosen = implementation()
    typer.echo(f"hand-over: {chosen.name} ({chosen.reason})")


def main() -> None:
    """Run the command line; a HarvestError becomes a message and an exit code."""
    try:
        with checked_output():
            app()
    except HarvestError as error:
        with suppress(OSError):  # the exit code reports the error too
            if _is_log_read():
                report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _is_log_read() -> bool:
    """Return False if the log's reader has stopped reading. A message to such a log would keep the command from
    ending."""
    log = sys.modules.get("harvest_lib.cli.log_output")  # loaded by commands that log
    return log is None or bool(log.log_is_read())
