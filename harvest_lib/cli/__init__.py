"""The command `harvest`.

Exit codes, for every command: 0 done; 1 something was found wrong (`audit`), or not running (`ps`); 2 the command line
is off; 3 configuration; 4 outbox table; 5 Postgres; 6 Kafka; 7 local stack; 8 checkpoint;
9 pipeline; 10 nothing was checked; 130 interrupted.
"""

import sys
from importlib.metadata import version as distribution_version

import typer
from confluent_kafka import libversion
from rich.console import Console

from harvest_lib.cli.audit import app as audit
from harvest_lib.cli.bench import bench
from harvest_lib.cli.chaos import chaos
from harvest_lib.cli.grants import app as grants
from harvest_lib.cli.init import init
from harvest_lib.cli.migrate import migrate
from harvest_lib.cli.park import app as park
from harvest_lib.cli.pipeline import app as pipeline
from harvest_lib.cli.pump import pump
from harvest_lib.cli.run import run
from harvest_lib.cli.segments import app as segments
from harvest_lib.cli.stack import app as stack
from harvest_lib.cli.status import status
from harvest_lib.cli.subscriptions import app as subscriptions
from harvest_lib.errors import HarvestError

app = typer.Typer(
    name="harvest",
    help="Move a transactional outbox from Postgres to Kafka: in per-key order, losing nothing.",
    epilog="Exit codes: 0 done, 1 found wrong, 2 usage, 3 configuration, 4 outbox table, 5 Postgres, 6 Kafka, 7 stack, "
    "8 checkpoint, 9 pipeline, 10 nothing was checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command in (init, migrate, run, status, pump, bench, chaos):
    app.command()(_command)
app.add_typer(audit)
app.add_typer(grants)
app.add_typer(park)
app.add_typer(pipeline)
app.add_typer(segments)
app.add_typer(subscriptions)
app.add_typer(stack)


@app.command()
def version() -> None:
    """Print the versions of the harvester and of the libraries that talk to the servers.

    Example:  harvest version
    """
    import psycopg  # noqa: PLC0415 - only this command needs it here

    typer.echo(f"harvest {distribution_version('outbox-harvester')}")
    typer.echo(f"librdkafka {libversion()[0]}, libpq {psycopg.pq.version_pretty(psycopg.pq.version())}")


def main() -> None:
    """Run the command line; errors of ours become a message and an exit code."""
    try:
        app()
    except HarvestError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {_escaped(str(error))}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
