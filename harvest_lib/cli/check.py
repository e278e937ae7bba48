"""`harvest check`: everything that keeps a harvester from working, before one runs."""

import sys
from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import ConfigFile, Json


def check(
    config: ConfigFile = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="A topic that records will go to; may be repeated. Those in the outbox are found."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check configuration, Postgres, Kafka and clocks, and print every problem with the command that fixes it.

    Run it as the role and with the settings of the harvester. It changes nothing.
    Errors keep the harvester from starting or records from arriving, warnings do
    neither. The exit code is that of the first error.

    Examples:

      harvest check -f harvest.yaml --topic orders --topic refunds

      harvest check -f harvest.yaml --json | jq '.problems[].next_step'
    """
    report = actions.check.inspected(config, topic or [])
    if as_json:
        typer.echo(actions.check.as_json(report))
    else:
        actions.check.show(report)
    sys.exit(report.exit_code)
