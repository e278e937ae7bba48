"""`harvest park list | show | retry | drop`: list parked records, send them again, or delete them."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import ConfigFile, Json
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import json_text

app = group("park", "Parked records, which Kafka rejected: list, retry or delete them.")

_Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Ids of records, as shown by `list`.")]
_Topic = Annotated[str | None, typer.Option("--topic", "-t", help="Only records for this topic.")]
_Key = Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")]
_All = Annotated[bool, typer.Option("--all", help="All parked records.")]

_Subscription = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        help="Whose records, if the outbox is harvested in batches. Default: the configuration's.",
        show_default=False,
    ),
]


@app.command("list")
def list_(
    config: ConfigFile = None,
    topic: _Topic = None,
    key: _Key = None,
    subscription: _Subscription = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")] = 100,
    as_json: Json = False,
) -> None:
    """List parked records and those held behind them, in order, without payloads.

    Examples:

      harvest park list -f reaper.yaml

      harvest park list -f reaper.yaml --topic orders --json | jq '.[].id'
    """
    from harvest_lib.outbox import ParkedSelection

    with actions.park.open_parked(config, subscription) as (parked, connection, _):
        records = parked.list(connection, topic=topic, key=key, limit=limit)
        counts = parked.counts(connection, ParkedSelection(topic=topic, key=key))
    if as_json:
        typer.echo(json_text([actions.park.record_json(record) for record in records]))
        return
    if not records:
        typer.echo("nothing is parked" if topic is None and key is None else actions.park.NOTHING_PARKED)
        return
    actions.park.show_records(records)
    if counts is not None:
        more = f", the first {limit:,} shown; --limit shows more" if counts.parked + counts.held > len(records) else ""
        typer.echo(f"{counts.parked:,} parked, {counts.held:,} held behind them{more}")


@app.command()
def show(
    record_id: Annotated[int, typer.Argument(metavar="ID", help="Id of the record, as shown by `list`.")],
    config: ConfigFile = None,
    subscription: _Subscription = None,
    value: Annotated[bool, typer.Option("--value", help="Show the payload too, and columns of your own.")] = False,
    as_json: Json = False,
) -> None:
    """Show one record with all its fields and headers. The payload is shown only with --value.

    Examples:

      harvest park show 4711 -f reaper.yaml

      harvest park show 4711 -f reaper.yaml --value --json | jq -r .row.kafka_value
    """
    from harvest_lib.outbox import ParkedIdTable

    with actions.park.open_parked(config, subscription) as (parked, connection, harvest):
        record = parked.show(connection, record_id)
    columns = harvest.columns if isinstance(parked, ParkedIdTable) else None
    if as_json:
        shown = actions.park.shown_columns(columns)
        row = {name: content for name, content in record.row.items() if value or name in shown}
        typer.echo(json_text({**actions.park.record_json(record), "row": row}))
        return
    actions.park.show_fields(record, columns, with_value=value)


@app.command()
def retry(
    ids: _Ids = None,
    config: ConfigFile = None,
    topic: _Topic = None,
    key: _Key = None,
    all_: _All = False,
    subscription: _Subscription = None,
    as_json: Json = False,
) -> None:
    """Put parked records, and those held behind them, back into the outbox. Do this after you removed the cause.

    The records keep their old positions. A record waits if an earlier record of
    its key stays parked, unless the policy is `parking: skip`. The command needs
    INSERT on the outbox.

    In an outbox that is harvested in batches, the records never left it. The
    leader sends them within about a second; without a leader, the next one does.

    Examples:

      harvest park retry 4711 4712 -f reaper.yaml

      harvest park retry --topic orders -f reaper.yaml

      harvest park retry --all -f reaper.yaml --json
    """
    from harvest_lib.outbox import ParkedRecords

    selection = actions.park.selected(ids, topic, key, everything=all_)
    with actions.park.open_parked(config, subscription) as (parked, connection, harvest):
        done = parked.retry(connection, selection, keep_order=harvest.parking != "skip")
    if as_json:
        typer.echo(json_text(asdict(done)))
        return
    verb = "put back" if isinstance(parked, ParkedRecords) else "will be sent again"
    typer.echo(f"{verb}: {actions.park.counted_records(done.parked)}, and {done.held:,} held behind them")
    if done.waiting:
        typer.echo(actions.park.waiting_text(done))


@app.command()
def drop(
    ids: _Ids = None,
    config: ConfigFile = None,
    topic: _Topic = None,
    key: _Key = None,
    all_: _All = False,
    subscription: _Subscription = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete parked records permanently, and put records held behind them back into the outbox.

    --topic, --key and --all select only parked records. To delete a held record,
    name its id. The command asks for confirmation; without a terminal it needs
    --yes.

    Examples:

      harvest park drop 4711 -f reaper.yaml

      harvest park drop --key o-1 -f reaper.yaml --yes
    """
    from harvest_lib.outbox import ParkedRecords

    selection = actions.park.selected(ids, topic, key, everything=all_)
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for confirmation: use --yes", param_hint="--yes")
    with actions.park.open_parked(config, subscription) as (parked, connection, _):
        if not yes:
            counts = parked.counts(connection, selection)
            number = len(selection.ids or ()) or (counts.parked if counts is not None else 0)
            if not number:
                typer.echo(actions.park.NOTHING_PARKED, err=True)
                return
            typer.confirm(f"Delete {actions.park.counted_records(number)} permanently?", abort=True, err=True)
        done = parked.drop(connection, selection)
    if as_json:
        typer.echo(json_text(asdict(done)))
    else:
        verb = "put back" if isinstance(parked, ParkedRecords) else "will be sent"
        typer.echo(f"dropped: {actions.park.counted_records(done.dropped)}; {verb}: {done.released:,} held behind them")
