"""`harvest subscriptions list | add | remove | rewind | move | reshard | sql`: the readers of an outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harvest_lib.cli.confirmation import DryRun, Yes, ask, require_answer
from harvest_lib.cli.move import move
from harvest_lib.cli.options import ConfigFile, Json, OnlyTopics, ReadingSource, configuration, names_of, open_outbox
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.cli.usage import require_duration, require_position, require_subscription, require_topics

if TYPE_CHECKING:
    from harvest_lib.config import HarvestConfig
    from harvest_lib.subscriptions.admin import Moved, Subscriptions

app = group("subscriptions", "Readers of an outbox, each with its own position: list, add, move and remove them.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.", show_default=False)]


@app.command("list")
def list_(config: ConfigFile = None, as_json: Json = False) -> None:
    """List subscriptions by shard: position, lag and leader.

    The lag is counted up to 100,000 records. A larger one is estimated from
    ids, and shown with "about".

    Examples:

      harvest subscriptions list -f harvest.yaml

      harvest subscriptions list -f harvest.yaml --json | jq '.[] | {name, shard, lag_records}'
    """
    from harvest_lib.cli.shards import HEADER, cells, shard_json
    from harvest_lib.cli.tables import print_table, table_of
    from harvest_lib.subscriptions.shards import trouble_notes

    with _open_subscriptions(config) as (subscriptions, _):
        shards = subscriptions.shards()
        rows = [shard_json(each, subscriptions.lag(each)) for each in shards]
    if as_json:
        typer.echo(json_text(rows))
    elif rows:
        print_table(table_of(map(cells, rows), HEADER))
        for note in trouble_notes(shards):
            typer.echo(f"warning: {printable(note)}", err=True)
    else:
        typer.echo("no subscriptions; a harvester adds its own when it first becomes leader")


@app.command()
def add(
    name: _Name,
    config: ConfigFile = None,
    start: Annotated[
        str, typer.Option("--from", metavar="beginning|now|SNAPSHOT", help="Where it starts.")
    ] = "beginning",
    topic: OnlyTopics = None,
    keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="REGEX", help="Only keys that match this regular expression of Postgres."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", min=1, max=1000, metavar="N", help="Number of shards. Default: the configuration's."),
    ] = None,
    source: Annotated[
        ReadingSource | None,
        typer.Option(
            metavar="snapshot|transaction_id", help="snapshot or transaction_id. Default: the configuration's."
        ),
    ] = None,
) -> None:
    """Add a subscription. This is needed only for a filter: a harvester adds its own subscription, starting at
    `startFrom`.

    A harvester joins by `subscription: NAME` in its configuration, with the same
    `shards` and `source`.

    Examples:

      harvest subscriptions add audit -f harvest.yaml --from now

      harvest subscriptions add eu -f harvest.yaml --topic orders --topic refunds --keys '^eu-'
    """
    require_subscription(name)
    require_position(start, "--from", "beginning", "now")
    topics = names_of(topic) or None
    require_topics(topics or (), "--topic")
    with _open_subscriptions(config) as (subscriptions, harvest):
        kind = source or ("snapshot" if harvest.source in {"auto", "mark"} else harvest.source)
        number = shards if shards is not None else harvest.shards
        moved = subscriptions.add(name, start=start, source=kind, shards=number, topics=topics, keys=keys)
    typer.echo(f"added: {name}, {number} {'shard' if number == 1 else 'shards'}, source {kind}, from {moved.to}")
    _show_warnings(moved)


@app.command()
def remove(
    name: _Name,
    config: ConfigFile = None,
    force: Annotated[bool, typer.Option("--force", help="Remove it even if a harvester is using it.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove a subscription. Records that it has not delivered are no longer kept for it.

    A harvester that is still configured for it adds it again, starting at
    `startFrom`. Under `delivery: transactional` its checkpoint stays in Kafka:
    before you start a harvester of that name, use `harvest subscriptions add`.

    Examples:

      harvest subscriptions remove audit -f harvest.yaml

      harvest subscriptions remove audit -f harvest.yaml --yes
    """
    require_subscription(name)
    require_answer(yes=yes or dry_run)
    with _open_subscriptions(config) as (subscriptions, _):
        lag = _lag(subscriptions, name)
        if dry_run:
            typer.echo(f"would remove: {name}, with {lag} not delivered")
            return
        ask(f"Remove {name}, with {lag} not delivered?", yes=yes)
        removed = subscriptions.remove(name, force=force)
        others = sorted({each.name for each in subscriptions.shards()})
    typer.echo(f"removed: {name}, with {lag} not delivered")
    if others:
        typer.echo(f"retention now drops what {', '.join(others)} {'has' if len(others) == 1 else 'have'} passed")
    else:
        typer.echo("no subscription is left; retention drops nothing until there is one")
    if any(each.checkpoint is None or each.checkpoint.kept_in == "kafka" for each in removed):
        typer.echo(f"its checkpoint in Kafka stays; to harvest it again: harvest subscriptions add {name} --from ...")


@app.command()
def rewind(
    name: _Name,
    to: Annotated[str, typer.Option("--to", metavar="beginning|now|SNAPSHOT|mirror", help="The new position.")],
    config: ConfigFile = None,
    source: Annotated[
        ReadingSource | None,
        typer.Option(metavar="snapshot|transaction_id", help="Convert its positions to snapshot or transaction_id."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move a subscription to another position: earlier, later, or the checkpoint that Postgres keeps.

    A running harvester adopts the position within about a second. `now` skips the
    backlog and a SNAPSHOT may, so the command asks first. A SNAPSHOT is a low
    watermark from `list`, with or without its server (`@...`). `mirror` is the
    checkpoint in Postgres: use it if the checkpoint topic was lost. Records
    delivered shortly before that may be delivered again.

    Examples:

      harvest subscriptions rewind audit -f harvest.yaml --to beginning

      harvest subscriptions rewind audit -f harvest.yaml --to now --dry-run

      harvest subscriptions rewind audit -f harvest.yaml --to 7071:7075:7071 --yes

      harvest subscriptions rewind audit -f harvest.yaml --to mirror --source transaction_id
    """
    require_subscription(name)
    require_position(to, "--to", "beginning", "now", "mirror")
    skips = to not in {"beginning", "mirror"}
    require_answer(yes=yes or dry_run or not skips)
    with _open_subscriptions(config) as (subscriptions, _):
        if skips or dry_run:
            lag = _lag(subscriptions, name)
        if dry_run:
            typer.echo(f"would rewind: {name}, with {lag} not delivered, to {to}")
            return
        if to == "now":
            ask(f"Skip {lag} that {name} has not delivered?", yes=yes)
        elif skips:
            ask(f"Move {name} to {to}? It has not delivered {lag}; those before that position are skipped.", yes=yes)
        moved = subscriptions.rewind(name, to=to, source=source)
    goes_on = "its leader continues from there within a second" if moved.is_led else "it has no leader now"
    typer.echo(f"rewound: {name} to {moved.to}; {goes_on}")
    _show_warnings(moved)


app.command()(move)


@app.command()
def reshard(
    name: _Name,
    shards: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Number of shards over which keys are hashed.")
    ],
    config: ConfigFile = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the old shards.")] = "60s",
) -> None:
    """Change the number of shards. Each key keeps its order; no record is skipped or repeated.

    The harvesters of the old shards must be running. The old shards stop at a
    common snapshot, and the new shards start there. Harvesters with the old number
    stop with an error: restart them with the new number.

    Examples:

      harvest subscriptions reshard default -f harvest.yaml --shards 4
    """
    from harvest_lib.subscriptions.resharding import Resharding

    require_subscription(name)
    seconds = require_duration(timeout, "--timeout")
    with _open_subscriptions(config) as (subscriptions, _):
        resharding = Resharding(subscriptions, name, shards, tell=lambda text: typer.echo(text, err=True))
        done = resharding.run(seconds)
    if done.before == done.after:
        typer.echo(f"{name} already has {shards} shards; shards that had an end continue")
    else:
        typer.echo(f"resharded: {name}, from {done.before} to {done.after} shards at {done.at}")
        typer.echo(f"now start its harvesters with `shards: {shards}`")


@app.command("sql")
def sql_(config: ConfigFile = None) -> None:
    """Print SQL for subscribers that poll without a harvester: their table, the poll and the advance.

    Use it with psql or your own program. The position is (transaction id, record
    id), with the limits of `source: transaction_id`.

    Examples:

      harvest subscriptions sql -f harvest.yaml > subscribers.sql
    """
    from harvest_lib.outbox import OutboxTable, subscribers_sql

    harvest = configuration(config).harvest
    typer.echo(subscribers_sql(OutboxTable.parse(harvest.outbox_table), harvest.columns), nl=False)


@contextmanager
def _open_subscriptions(config: Path | None) -> "Iterator[tuple[Subscriptions, HarvestConfig]]":
    """Connect to the configured outbox, and yield its subscriptions and the configuration. Companion tables that are
    missing are created."""
    from harvest_lib.harvester.assembly.factory import make_selection
    from harvest_lib.outbox import create_beside
    from harvest_lib.subscriptions.admin import Subscriptions

    with open_outbox(config) as (harvest, outbox, connection):
        if harvest.columns is None:
            outbox.check_native(connection)
        create_beside(connection, outbox)
        yield Subscriptions(connection, outbox.placed(connection), make_selection(harvest, outbox)), harvest


def _lag(subscriptions: "Subscriptions", name: str) -> str:
    """Return how many records all shards of a subscription have not delivered, as text."""
    from harvest_lib.cli.shards import lag_text

    lags = [subscriptions.lag(each) for each in subscriptions.get(name)]
    return lag_text(sum(each.records for each in lags), is_estimate=any(each.is_estimate for each in lags))


def _show_warnings(moved: "Moved") -> None:
    for warning in moved.warnings:
        typer.echo(f"warning: {warning}", err=True)
