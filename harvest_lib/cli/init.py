"""`harvest init`: create the outbox table and its companion tables, or print their DDL."""

from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import DEFAULT_SEGMENT_SIZE, ColumnType, ConfigFile, TableName, configuration


def init(
    config: ConfigFile = None,
    table: TableName = None,
    native: Annotated[
        bool | None,
        typer.Option("--native/--goharvest", help="The layout. Default: that of the existing table, else native."),
    ] = None,
    value_type: Annotated[
        ColumnType, typer.Option(help="Type of kafka_value in a native table; varchar holds 10,000 characters.")
    ] = "varchar",
    segment_size: Annotated[int, typer.Option(min=1, help="Ids in a segment of a native table.")] = (
        DEFAULT_SEGMENT_SIZE
    ),
    checks: Annotated[
        bool | None,
        typer.Option(
            "--checks/--no-checks",
            help="Add CHECK constraints: they reject records that Kafka always rejects. Default: native tables only.",
            show_default=False,
        ),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL for your own migrations and change nothing.")
    ] = False,
) -> None:
    """Create the outbox table and its companion tables if they do not exist.

    Existing tables are not changed, with one exception: a native table gets the
    constraints that it lacks. They do not apply to existing rows, and writers
    wait for milliseconds.

    The native layout works with every source. The goharvest layout is the one
    that goharvest creates. The companion tables hold parked records and, for a
    native outbox, subscriptions and segments.

    Examples:

      harvest init -f reaper.yaml

      HARVEST_DSN="host=db user=app dbname=shop" harvest init --table billing.outbox --value-type bytea

      harvest init --goharvest -f reaper.yaml

      harvest init --print > migrations/0001_outbox.sql
    """
    from harvest_lib.database import connect
    from harvest_lib.outbox import NativeTable, OutboxTable
    from harvest_lib.outbox.checks import check_statements

    harvest = None if print_ and config is None and table is not None else configuration(config).harvest
    outbox = OutboxTable.parse(table or (harvest.outbox_table if harvest is not None else ""))
    if harvest is not None and harvest.columns is not None:
        actions.init.create_beside_mapped(harvest, harvest.columns, outbox, print_=print_)
        return
    definition = NativeTable(
        outbox=outbox, value_type=value_type, segment_size=segment_size, has_checks=checks is not False
    )
    if print_ or harvest is None:
        goharvest = [outbox.create_statement(), *(check_statements(outbox) if checks else [])]
        actions.init.print_statements(outbox, goharvest if native is False else definition.create_statements())
        return
    with connect(harvest.data_source.conninfo()) as connection, actions.init.creating(connection, outbox):
        for name, new in actions.init.create_tables(connection, definition, native=native):
            typer.echo(f"{'created' if new else 'already exists and is valid'}: {name}")
        if checks or (checks is None and outbox.kind(connection) == "native"):
            actions.init.add_missing_checks(connection, outbox)
