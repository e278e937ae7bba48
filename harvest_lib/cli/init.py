"""`harvest init`: create the outbox table, or print its DDL."""

from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, configuration
from harvest_lib.database import connect
from harvest_lib.outbox import OutboxTable


def init(
    config: ConfigFile = None,
    table: Annotated[str | None, typer.Option(help="The table's name; default: the configuration's.")] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL for your own migrations, change nothing.")
    ] = False,
) -> None:
    """Create the outbox table unless it is there.

    Examples:

      harvest init -f reaper.yaml

      HARVEST_DSN="host=db user=app dbname=shop" harvest init --table billing.outbox

      harvest init --print > migrations/0001_outbox.sql
    """
    if print_ and config is None and table is not None:
        typer.echo(f"{OutboxTable.parse(table).create_statement().as_string(None)};")
        return
    harvest = configuration(config).harvest
    outbox = OutboxTable.parse(table or harvest.outbox_table)
    if print_:
        typer.echo(f"{outbox.create_statement().as_string(None)};")
        return
    with connect(harvest.data_source.conninfo()) as connection:
        created = outbox.create(connection)
        outbox.check(connection)
    typer.echo(f"{'created' if created else 'already there, and fit to be harvested'}: {outbox}")
