"""`harvest subscriptions move`: continue all subscriptions on another server."""

from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, configuration
from harvest_lib.errors import ConfigError


def move(
    config: ConfigFile = None,
    last_id: Annotated[
        int | None,
        typer.Option("--last-id", metavar="ID", help="The last id of the old server, if the rows do not show it."),
    ] = None,
    from_mirror: Annotated[
        bool,
        typer.Option(
            "--from-mirror", help="Use the checkpoint in Postgres, not in Kafka. The last records are repeated."
        ),
    ] = False,
) -> None:
    """Continue all subscriptions on this server after the outbox was moved to it.

    Use it after dump and restore, pg_upgrade or logical replication. Stop the
    harvesters first; writers may write to this server. Copied records that were not
    delivered come before records written here. Records that the last checkpoint has
    passed are not repeated. Run it as the owner of the tables. All copied rows get
    new transaction ids, in a single transaction.

    Examples:

      harvest subscriptions move -f harvest.yaml

      harvest subscriptions move -f harvest.yaml --last-id 48211
    """
    from harvest_lib.harvester.assembly.factory import make_selection
    from harvest_lib.outbox import OutboxTable, create_beside
    from harvest_lib.postgres.database import connect
    from harvest_lib.subscriptions.admin import Subscriptions
    from harvest_lib.subscriptions.moving import Moving, kafka_checkpoints

    harvest = configuration(config).harvest
    if harvest.columns is not None:
        raise ConfigError(
            "a table with mapped columns cannot be moved",
            field="columns",
            next_step="start its subscriptions again: `harvest subscriptions rewind NAME --to beginning|now`",
        )
    with connect(harvest.data_source.conninfo()) as connection:
        outbox = OutboxTable.parse(harvest.outbox_table).placed(connection)
        create_beside(connection, outbox)
        subscriptions = Subscriptions(connection, outbox, make_selection(harvest, outbox))
        moved = Moving(subscriptions, kafka_checkpoints(harvest), from_mirror=from_mirror).run(last_id=last_id)
    if moved is None:
        typer.echo("nothing to move: every subscription belongs to this server")
        return
    typer.echo(f"moved: from server {moved.from_system} to {moved.to_system}")
    if moved.origin.is_upgraded:
        typer.echo("transactions keep their numbers (pg_upgrade): every subscription continues at its position")
        return
    last = f", up to id {moved.origin.last_id}" if moved.origin.last_id is not None else ""
    typer.echo(f"{moved.origin.rows:,} records were copied{last}")
    for name, waiting in moved.waiting.items():
        typer.echo(f"{name}: {waiting:,} of them are still to be delivered")
    typer.echo(
        "unknown here: records that the old server's harvesters delivered after the last checkpoint, and records "
        "written there after the copy"
    )
