"""`harvest migrate`: convert a table from goharvest's layout to the native layout, in place."""

from typing import Annotated

import typer

from harvest_lib.cli.options import DEFAULT_SEGMENT_SIZE, ConfigFile, TableName, open_outbox
from harvest_lib.cli.usage import Misuse


def migrate(
    config: ConfigFile = None,
    table: TableName = None,
    segment_size: Annotated[int, typer.Option(min=1, metavar="N", help="Ids in a segment.")] = DEFAULT_SEGMENT_SIZE,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL of the remaining steps and change nothing.")
    ] = False,
    restamp: Annotated[
        bool,
        typer.Option(
            "--restamp", help="Instead of migrating: give records of another server a transaction id of this server."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Restamp even if a subscription is active.")] = False,
) -> None:
    """Convert a table from goharvest's layout to the native layout. Writers and harvesters may stay active.

    Run it as the owner of the table. It waits for a lock for at most 0.2 s and
    then tries again. If it is killed, run it again to continue. It does nothing
    on a native table. After the migration, new ids are 100,000,000,000 higher.

    Examples:

      harvest migrate -f harvest.yaml

      harvest migrate --print -f harvest.yaml > migration.sql

      harvest migrate --restamp -f harvest.yaml
    """
    if force and not restamp:
        raise Misuse("--force needs --restamp", next_step="add --restamp, or leave --force out")
    from harvest_lib.outbox.relocation import Migration, Restamping
    from harvest_lib.outbox.stamping import add_stamp

    opened = open_outbox(config, table, refuse_columns="only goharvest's layout can be migrated")
    with opened as (_, outbox, connection):
        if restamp:
            restamped = Restamping(outbox=outbox).run(connection, force=force)
            typer.echo(f"{restamped:,} records restamped")
            return
        migration = Migration(outbox=outbox, segment_size=segment_size, after=lambda step: typer.echo(f"done: {step}"))
        if print_:
            typer.echo(migration.script(connection) or f"-- {outbox} is already native")
            return
        taken = migration.run(connection)
        outbox.check(connection)
        outbox.check_native(connection)
        add_stamp(connection, outbox)
    typer.echo(f"{outbox} is native" if taken else f"{outbox} is already native")
