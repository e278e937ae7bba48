"""`harvest init`: create the outbox table and that of its parked records, or print their DDL."""

from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, configuration
from harvest_lib.database import connect
from harvest_lib.outbox import OutboxTable, ParkedRecords


def init(
    config: ConfigFile = None,
    table: Annotated[str | None, typer.Option(help="The table's name; default: the configuration's.")] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL for your own migrations, change nothing.")
    ] = False,
) -> None:
    """Create the outbox table, and the one beside it for parked records, unless they are there.

    Examples:

      harvest init -f reaper.yaml

      HARVEST_DSN="host=db user=app dbname=shop" harvest init --table billing.outbox

      harvest init --print > migrations/0001_outbox.sql
    """
    if print_ and config is None and table is not None:
        _print(OutboxTable.parse(table))
        return
    harvest = configuration(config).harvest
    outbox = OutboxTable.parse(table or harvest.outbox_table)
    if print_:
        _print(outbox)
        return
    parked = ParkedRecords(outbox)
    names = (outbox, parked.table)
    with connect(harvest.data_source.conninfo()) as connection:
        created = (outbox.create(connection), parked.create(connection))
        outbox.check(connection)
        parked.check(connection)
    for name, new in zip(names, created, strict=True):
        typer.echo(f"{'created' if new else 'already there, and fit for use'}: {name}")


def _print(outbox: OutboxTable) -> None:
    for statement in (outbox.create_statement(), ParkedRecords(outbox).create_statement()):
        typer.echo(f"{statement.as_string(None)};\n")
