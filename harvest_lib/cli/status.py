"""`harvest status`: backlog, age of the oldest record, leader and rate."""

from dataclasses import asdict
from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import ConfigFile, Json
from harvest_lib.cli.terminal import json_text


def status(
    config: ConfigFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show backlog, age of the oldest record, leader and delivery rate. Reads twice, one second apart.

    Examples:

      harvest status -f reaper.yaml

      harvest status -f reaper.yaml --watch

      harvest status -f reaper.yaml --json | jq .backlog_records
    """
    with actions.status.open_readings(config) as readings:
        if watch and not as_json:
            actions.status.watch_status(readings)
        while True:
            current = readings.next()
            if as_json:
                typer.echo(json_text(asdict(current)))
            else:
                actions.status.show_status(current)
            if not watch:
                return
