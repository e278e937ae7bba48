"""`harvest park list | show | retry | drop`: what was set aside, and what becomes of it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from typing import Annotated, Any

import psycopg
import typer
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.options import ConfigFile, Json, configuration
from harvest_lib.cli.tables import print_table
from harvest_lib.cli.terminal import age, printable
from harvest_lib.config import HarvestConfig
from harvest_lib.config.columns import ColumnMapping, Constant, Part
from harvest_lib.database import connect
from harvest_lib.outbox import OutboxTable, ParkedIdTable, ParkedRecord, ParkedRecords, ParkedRow, Retried, Selection
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.source.mapping import mapped_columns
from harvest_lib.source.selection import COLUMNS

app = typer.Typer(
    name="park",
    help="Records that Kafka would not take: see them, put them back, or drop them for good.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Ids, as `list` shows them.")]
_Topic = Annotated[str | None, typer.Option("--topic", "-t", help="Those for this topic.")]
_Key = Annotated[str | None, typer.Option("--key", "-k", help="Those of this key.")]
_All = Annotated[bool, typer.Option("--all", help="All of them.")]

_Subscription = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        help="Whose, where the outbox is harvested by laps. Default: the configuration's.",
        show_default=False,
    ),
]

_NOTHING = "nothing of that is parked"
_HEADER_COLUMNS = ("kafka_header_keys", "kafka_header_values")
_KNOWN_COLUMNS = ("id", "create_time", "kafka_topic", "kafka_key", "kafka_value", *_HEADER_COLUMNS, "leader_id")


@app.command("list")
def list_(
    config: ConfigFile = None,
    topic: _Topic = None,
    key: _Key = None,
    subscription: _Subscription = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """Show what is set aside, in order: the parked, and those held behind them. No payloads.

    Examples:

      harvest park list -f reaper.yaml

      harvest park list -f reaper.yaml --topic orders --json | jq '.[].id'
    """
    with _parked(config, subscription) as (parked, connection, _):
        records = parked.list(connection, topic=topic, key=key, limit=limit)
        counts = parked.counts(connection, Selection(topic=topic, key=key))
    if as_json:
        typer.echo(json.dumps([_as_json(record) for record in records]))
        return
    if not records:
        typer.echo("nothing is parked" if topic is None and key is None else _NOTHING)
        return
    table = Table("id", "topic", "key", "state", "age", "reason")
    for record in records:
        state = Text("held", "dim") if record.held else Text("parked", "yellow")
        if record.gone:
            state = Text("no longer in the outbox", "dim")
        texts = [Text(printable(text)) for text in (record.topic, record.key)]
        table.add_row(str(record.id), *texts, state, age(record.age_seconds), Text(printable(record.reason)))
    print_table(table)
    if counts is not None:
        more = f", the first {limit:,} shown; --limit shows more" if counts.parked + counts.held > len(records) else ""
        typer.echo(f"{counts.parked:,} parked, {counts.held:,} held behind them{more}")


@app.command()
def show(
    record_id: Annotated[int, typer.Argument(metavar="ID", help="The record's id, as `list` shows it.")],
    config: ConfigFile = None,
    subscription: _Subscription = None,
    value: Annotated[bool, typer.Option("--value", help="With the payload, and columns of your own.")] = False,
    as_json: Json = False,
) -> None:
    """Show one record: all its fields and headers, the payload only with --value.

    Examples:

      harvest park show 4711 -f reaper.yaml

      harvest park show 4711 -f reaper.yaml --value --json | jq -r .row.kafka_value
    """
    with _parked(config, subscription) as (parked, connection, harvest):
        record = parked.show(connection, record_id)
    columns = harvest.columns if isinstance(parked, ParkedIdTable) else None
    if as_json:
        shown = _shown_columns(columns)
        row = {name: content for name, content in record.row.items() if value or name in shown}
        typer.echo(json.dumps({**_as_json(record), "row": row}))
        return
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, content in _fields(record, columns, with_value=value):
        table.add_row(Text(name), Text(content))
    print_table(table)


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
    """Put records back into the outbox, and with them what is held behind them, once the cause is gone.

    They take their old places. One whose key has an earlier record that stays parked waits for that one, unless the
    policy is `parking: skip`. Needs INSERT on the outbox. Out of one that is harvested by laps nothing was taken:
    the harvester that leads sends them within about a second, or the next one when it leads.

    Examples:

      harvest park retry 4711 4712 -f reaper.yaml

      harvest park retry --topic orders -f reaper.yaml

      harvest park retry --all -f reaper.yaml --json
    """
    selection = _selection(ids, topic, key, everything=all_)
    with _parked(config, subscription) as (parked, connection, harvest):
        done = parked.retry(connection, selection, keep_order=harvest.parking != "skip")
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    verb = "put back" if isinstance(parked, ParkedRecords) else "to be sent again"
    typer.echo(f"{verb}: {_records(done.parked)}, and {done.held:,} held behind them")
    if done.waiting:
        typer.echo(_waiting(done))


@app.command()
def drop(
    ids: _Ids = None,
    config: ConfigFile = None,
    topic: _Topic = None,
    key: _Key = None,
    all_: _All = False,
    subscription: _Subscription = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete parked records for good, and put what is held behind them back into the outbox.

    By --topic, --key or --all only the parked ones are dropped; a held one is dropped only by its id. Asks first;
    without a terminal, --yes is needed.

    Examples:

      harvest park drop 4711 -f reaper.yaml

      harvest park drop --key o-1 -f reaper.yaml --yes
    """
    selection = _selection(ids, topic, key, everything=all_)
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to be asked: give --yes", param_hint="--yes")
    with _parked(config, subscription) as (parked, connection, _):
        if not yes:
            counts = parked.counts(connection, selection)
            number = len(selection.ids or ()) or (counts.parked if counts is not None else 0)
            if not number:
                typer.echo(_NOTHING, err=True)
                return
            typer.confirm(f"Delete {_records(number)} for good?", abort=True, err=True)
        done = parked.drop(connection, selection)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        verb = "put back" if isinstance(parked, ParkedRecords) else "to be sent"
        typer.echo(f"dropped: {_records(done.dropped)}; {verb}: {done.released:,} that were held behind them")


def set_aside(
    connection: "psycopg.Connection[Any]", table: OutboxTable, config: HarvestConfig, subscription: str | None = None
) -> ParkedRecords | ParkedIdTable:
    """Return what was set aside where the configuration's source would do it, of a subscription if that is by laps."""
    mapped = config.columns is not None
    if config.source == "mark" or not (mapped or subscription is not None or table.kind(connection) == "native"):
        return ParkedRecords(table)
    columns = COLUMNS if config.columns is None else mapped_columns(config.columns)
    return ParkedIdTable(table, subscription or config.subscription, columns["id"], columns["transaction_id"])


@contextmanager
def _parked(
    config: Any, subscription: str | None
) -> Iterator[tuple[ParkedRecords | ParkedIdTable, "psycopg.Connection[Any]", HarvestConfig]]:
    harvest = configuration(config).harvest
    table = OutboxTable.parse(harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        parked = set_aside(connection, table, harvest, subscription)
        if isinstance(parked, ParkedRecords):
            check_all_rows(connection, [parked.table.identifier])
        yield parked, connection, harvest


def _selection(ids: list[int] | None, topic: str | None, key: str | None, *, everything: bool) -> Selection:
    if [bool(ids), topic is not None or key is not None, everything].count(True) != 1:
        raise typer.BadParameter("say which records: ids, or --topic and --key, or --all")
    return Selection(ids=ids or None, topic=topic, key=key)


def _as_json(record: ParkedRecord) -> dict[str, object]:
    return {**asdict(record), "parked_at": record.parked_at.isoformat()}


def _fields(record: ParkedRow, columns: ColumnMapping | None, *, with_value: bool) -> Iterator[tuple[str, str]]:
    row = record.row
    yield "id", str(record.id)
    yield "topic", printable(record.topic)
    yield "key", printable(record.key)
    yield "state", "no longer in the outbox" if record.gone else "held" if record.held else "parked"
    yield "reason", printable(record.reason)
    yield "parked", f"{record.parked_at.isoformat(timespec='seconds')}, {age(record.age_seconds)} ago"
    if not row:
        yield "value", "the record is no longer in the outbox"
        return
    created = "create_time" if columns is None else columns.create_time
    yield "created", "not known" if created is None else str(row.get(created))
    if columns is None:
        names, contents = (row.get(column) or [] for column in _HEADER_COLUMNS)
    else:
        names, contents = list(columns.headers), [_part(row, each) for each in columns.headers.values()]
    if len(names) != len(contents):
        yield "headers", f"{len(names)} names, {len(contents)} values"
    for name, content in zip_longest(names, contents, fillvalue=None):
        yield f"header {_text(name)}", _text(content)
    payload = row.get("kafka_value") if columns is None else _part(row, columns.kafka_value)
    if payload is None:
        yield "value", "none: a tombstone"
    elif with_value:
        yield "value", _text(payload)
    else:
        yield (
            "value",
            f"{len(payload if isinstance(payload, str) else json.dumps(payload)):,} characters, shown with --value",
        )
    known = {*_shown_columns(columns), "kafka_value" if columns is None else columns.kafka_value}
    others = [name for name in row if name not in known]
    if with_value:
        yield from ((f"column {printable(name)}", _text(row[name])) for name in others)
    elif others:
        yield "other columns", f"{len(others)}, shown with --value"


def _text(content: object) -> str:
    return "(none)" if content is None else printable(content if isinstance(content, str) else json.dumps(content))


def _part(row: dict[str, Any], part: Part) -> object:
    """Return a part of a record of another layout: what a column has, or the same for all."""
    return part.value if isinstance(part, Constant) else row.get(part)


def _shown_columns(columns: ColumnMapping | None) -> set[str]:
    """Return the columns that are shown without the payload and what else a table has."""
    if columns is None:
        return {*_KNOWN_COLUMNS} - {"kafka_value"}
    parts = (columns.id, columns.transaction_id, columns.kafka_topic, columns.kafka_key, columns.create_time)
    named = {each for each in (*parts, *columns.headers.values()) if isinstance(each, str)}
    return named - {columns.kafka_value if isinstance(columns.kafka_value, str) else ""}


def _records(number: int) -> str:
    return f"{number:,} parked {'record' if number == 1 else 'records'}"


def _waiting(done: Retried) -> str:
    behind = ", ".join(str(record_id) for record_id in done.behind)
    verb, pronoun = ("waits", "its key") if done.waiting == 1 else ("wait", "their keys")
    return f"{done.waiting:,} {verb} behind an earlier record of {pronoun} that is still parked: {behind}"
