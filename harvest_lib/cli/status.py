"""`harvest status`: backlog, age of the oldest record, leader and rate."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, Json, configuration


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
    from rich.console import Console, Group
    from rich.live import Live

    from harvest_lib.cli.actions.status import StatusReadings, note_lines, status_table
    from harvest_lib.cli.actions.tables import Fitting, print_table
    from harvest_lib.database import connect
    from harvest_lib.outbox import OutboxTable, check_column_mapping

    harvest = configuration(config).harvest
    table = OutboxTable.parse(harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        if harvest.columns is None:
            table.check_columns(connection)  # status needs no privilege but SELECT
        else:
            check_column_mapping(connection, table, harvest.columns)
        look = StatusReadings(connection, table, harvest)
        if not watch:
            current = look.next()
            if as_json:
                typer.echo(json.dumps(asdict(current)))
            else:
                print_table(status_table(current))
                for note in note_lines(current):
                    Console(highlight=False).print(note, soft_wrap=True)
        elif as_json:
            while True:
                typer.echo(json.dumps(asdict(look.next())))
        else:
            with Live(refresh_per_second=4) as live:
                while True:
                    current = look.next()
                    live.update(Group(Fitting(status_table(current)), *note_lines(current)))
