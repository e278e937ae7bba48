"""`harvest migrate`: turn a table of goharvest's layout into a native one, in place."""

from typing import Annotated

import typer

from harvest_lib.cli.options import DEFAULT_SEGMENT_SIZE, ConfigFile, configuration, refuse_columns


def migrate(
    config: ConfigFile = None,
    table: Annotated[str | None, typer.Option(help="The table's name; default: the configuration's.")] = None,
    segment_size: Annotated[int, typer.Option(min=1, help="Ids in a segment.")] = DEFAULT_SEGMENT_SIZE,
    print_: Annotated[
        bool, typer.Option("--print", "--dry-run", help="Print the SQL of what remains, change nothing.")
    ] = False,
    restamp: Annotated[
        bool, typer.Option("--restamp", help="Instead: give records of another server a transaction of this one.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Restamp although a subscription is at work.")] = False,
) -> None:
    """Turn a table of goharvest's layout into a native one, while others write and harvest. Run it as its owner.

    Each lock is asked for during 0.2 s at most, again and again. Killed at any step, it is continued by running it
    again; on a native table it does nothing. Afterwards ids go on 100,000,000,000 higher.

    Examples:

      harvest migrate -f reaper.yaml

      harvest migrate --print -f reaper.yaml > migration.sql

      harvest migrate --restamp -f reaper.yaml
    """
    from harvest_lib.database import connect
    from harvest_lib.outbox import Migration, OutboxTable, Restamping

    harvest = configuration(config).harvest
    refuse_columns(harvest, "only goharvest's becomes a native one")
    outbox = OutboxTable.parse(table or harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        if restamp:
            restamped = Restamping(outbox=outbox).run(connection, force=force)
            typer.echo(f"{restamped:,} records restamped")
            return
        migration = Migration(outbox=outbox, segment_size=segment_size, after=lambda step: typer.echo(f"done: {step}"))
        if print_:
            typer.echo(migration.script(connection) or f"-- {outbox} is native already")
            return
        taken = migration.run(connection)
        outbox.check(connection)
        outbox.check_native(connection)
    typer.echo(f"{outbox} is native" + ("" if taken else ", and was before"))
