"""`harvest subscriptions list | add | remove | rewind | move | reshard | sql`: who reads an outbox, and from where."""

import json
from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, Json, configuration
from harvest_lib.cli.parsing import Group
from harvest_lib.errors import ConfigError

app = typer.Typer(
    name="subscriptions",
    cls=Group,
    help="Readers of one outbox, each with its own position: see them, add, move and remove them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.", show_default=False)]
_Shards = Annotated[int, typer.Option("--shards", min=1, max=1000, help="Into how many shards its keys are hashed.")]


@app.command("list")
def list_(config: ConfigFile = None, as_json: Json = False) -> None:
    """Show each subscription, by shard: where it stands, how far behind it is, and who leads it.

    The lag is counted up to 100,000 records; beyond, it is a lower bound, shown with a +.

    Examples:

      harvest subscriptions list -f reaper.yaml

      harvest subscriptions list -f reaper.yaml --json | jq '.[] | {name, shard, lag_records}'
    """
    from harvest_lib.cli.actions.subscriptions import configured_subscriptions, shard_json, subscription_table
    from harvest_lib.cli.actions.tables import print_table

    with configured_subscriptions(config) as (subscriptions, _):
        found = [(each, subscriptions.lag(each)) for each in subscriptions.shards()]
    if as_json:
        typer.echo(json.dumps([shard_json(*each) for each in found]))
    elif found:
        print_table(subscription_table(found))
    else:
        typer.echo("no subscriptions: a harvester adds its own when it first leads")


@app.command()
def add(
    name: _Name,
    config: ConfigFile = None,
    start: Annotated[
        str, typer.Option("--from", metavar="beginning|now|SNAPSHOT", help="What it delivers first.")
    ] = "beginning",
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only records for this topic; may be repeated.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar="REGEX", help="Only keys in which Postgres finds this.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, max=1000, help="Shards; default: the configuration's.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="snapshot or transaction_id; default: the configuration's.")
    ] = None,
) -> None:
    """Begin a subscription. Only with a filter is this needed: a harvester begins its own at `startFrom`.

    Harvesters take part in it by `subscription: NAME` in their configuration, with the same `shards` and `source`.

    Examples:

      harvest subscriptions add audit -f reaper.yaml --from now

      harvest subscriptions add eu -f reaper.yaml --topic orders --topic refunds --keys '^eu-'
    """
    from harvest_lib.cli.actions.subscriptions import configured_subscriptions, show_warnings

    with configured_subscriptions(config) as (subscriptions, harvest):
        kind = source or ("snapshot" if harvest.source in {"auto", "mark"} else harvest.source)
        number = shards if shards is not None else harvest.shards
        moved = subscriptions.add(name, start=start, source=kind, shards=number, topics=topic, keys=keys)
    typer.echo(f"added: {name}, {number} {'shard' if number == 1 else 'shards'}, source {kind}, from {moved.to}")
    show_warnings(moved)


@app.command()
def remove(
    name: _Name,
    config: ConfigFile = None,
    force: Annotated[bool, typer.Option("--force", help="Even while it is being harvested.")] = False,
) -> None:
    """Forget a subscription: what it has not delivered is kept for it no longer.

    A harvester that is still configured for it begins it anew, at its `startFrom`.

    Examples:

      harvest subscriptions remove audit -f reaper.yaml
    """
    from harvest_lib.cli.actions.subscriptions import configured_subscriptions, lag_text

    with configured_subscriptions(config) as (subscriptions, _):
        lags = [subscriptions.lag(each) for each in subscriptions.get(name)]
        subscriptions.remove(name, force=force)
        others = sorted({each.name for each in subscriptions.shards()})
    typer.echo(f"removed: {name}, with {lag_text(lags)} that it had not delivered")
    if others:
        typer.echo(f"retention now drops what {', '.join(others)} {'has' if len(others) == 1 else 'have'} passed")
    else:
        typer.echo("no subscription is left: retention drops nothing until there is one")


@app.command()
def rewind(
    name: _Name,
    to: Annotated[str, typer.Option("--to", metavar="beginning|now|SNAPSHOT|mirror", help="Where it goes on.")],
    config: ConfigFile = None,
    source: Annotated[str | None, typer.Option(help="Convert its positions: snapshot or transaction_id.")] = None,
) -> None:
    """Have a subscription go on from elsewhere: earlier, later, or from what Postgres remembers.

    A running harvester takes it up within about a second, by itself. `now` skips what waits; a SNAPSHOT is a `seen`
    that `list` has shown, with or without the server that it is of (`@…`); `mirror` is the checkpoint in Postgres, for
    a checkpoint topic that was lost: what was delivered in the last moments before may come again.

    Examples:

      harvest subscriptions rewind audit -f reaper.yaml --to beginning

      harvest subscriptions rewind audit -f reaper.yaml --to 7071:7075:7071

      harvest subscriptions rewind audit -f reaper.yaml --to mirror --source transaction_id
    """
    from harvest_lib.cli.actions.subscriptions import configured_subscriptions, show_warnings

    with configured_subscriptions(config) as (subscriptions, _):
        moved = subscriptions.rewind(name, to=to, source=source)
    goes_on = "its leader goes on from there within a second" if moved.is_led else "nobody leads it now"
    typer.echo(f"rewound: {name} to {moved.to}; {goes_on}")
    show_warnings(moved)


@app.command()
def move(
    config: ConfigFile = None,
    last_id: Annotated[
        int | None,
        typer.Option("--last-id", help="The last id of the old server, where rows do not tell by themselves."),
    ] = None,
    from_mirror: Annotated[
        bool, typer.Option("--from-mirror", help="Not from the checkpoint in Kafka: its last records come again.")
    ] = False,
) -> None:
    """Have the subscriptions go on after the outbox was moved to this server, from where they were on the old one.

    After dump and restore, pg_upgrade or logical replication. Stop the harvesters first; writers may write here. What
    came along and was not delivered comes before what was written here; nothing that the last checkpoint has passed
    comes again. Run as the owner of the tables. Rows that came along get new transaction ids, all in one transaction.

    Examples:

      harvest subscriptions move -f reaper.yaml

      harvest subscriptions move -f reaper.yaml --last-id 48211
    """
    from harvest_lib.database import connect
    from harvest_lib.harvester.factory import make_selection
    from harvest_lib.outbox import OutboxTable, create_beside
    from harvest_lib.subscriptions.admin import Subscriptions
    from harvest_lib.subscriptions.moving import Moving, kafka_checkpoints

    harvest = configuration(config).harvest
    if harvest.columns is not None:
        raise ConfigError(
            "a table of another layout is not moved",
            field="columns",
            next_step="begin its subscriptions anew: `harvest subscriptions rewind NAME --to beginning|now`",
        )
    with connect(harvest.data_source.conninfo()) as connection:
        outbox = OutboxTable.parse(harvest.outbox_table).placed(connection)
        create_beside(connection, outbox)
        subscriptions = Subscriptions(connection, outbox, make_selection(harvest, outbox))
        moved = Moving(subscriptions, kafka_checkpoints(harvest), from_mirror=from_mirror).run(last_id=last_id)
    if moved is None:
        typer.echo("nothing to move: every subscription is of this server")
        return
    typer.echo(f"moved: from server {moved.from_system} to {moved.to_system}")
    if moved.origin.is_upgraded:
        typer.echo("transactions keep their numbers (pg_upgrade): every subscription goes on where it was")
        return
    last = f", up to id {moved.origin.last_id}" if moved.origin.last_id is not None else ""
    typer.echo(f"{moved.origin.rows:,} records came along{last}")
    for name, waiting in moved.waiting.items():
        typer.echo(f"{name}: {waiting:,} of them are still to be delivered")
    typer.echo(
        "what cannot be known here: what the old server's harvesters delivered after the last checkpoint, and what was "
        "written there after the copy"
    )


@app.command()
def reshard(
    name: _Name,
    shards: _Shards,
    config: ConfigFile = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that the old shards may take.")] = 60.0,
) -> None:
    """Change the number of shards, each key's order kept, nothing skipped and nothing twice.

    The old shards come to one snapshot and stop there, so their harvesters have to be running; then the new ones begin.
    Harvesters that have the old number stop with an error: start them again with the new one.

    Examples:

      harvest subscriptions reshard default -f reaper.yaml --shards 4
    """
    from harvest_lib.cli.actions.subscriptions import configured_subscriptions
    from harvest_lib.subscriptions.resharding import Resharding

    with configured_subscriptions(config) as (subscriptions, _):
        resharding = Resharding(subscriptions, name, shards, tell=lambda text: typer.echo(text, err=True))
        done = resharding.run(timeout)
    if done.before == done.after:
        typer.echo(f"{name} is divided into {shards} already; whoever was told to stop goes on")
    else:
        typer.echo(f"divided anew: {name}, from {done.before} into {done.after} at {done.at}")
        typer.echo(f"now start its harvesters with `shards: {shards}`")


@app.command("sql")
def sql_(config: ConfigFile = None) -> None:
    """Print the SQL for subscribers without a harvester: their table, how they poll and how they advance.

    For psql, or a program of your own. The position is (transaction id, record id): simple, with the limits of
    `source: transaction_id`.

    Examples:

      harvest subscriptions sql -f reaper.yaml > subscribers.sql
    """
    from harvest_lib.outbox import OutboxTable, subscribers_sql

    harvest = configuration(config).harvest
    typer.echo(subscribers_sql(OutboxTable.parse(harvest.outbox_table), harvest.columns), nl=False)
