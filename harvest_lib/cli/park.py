"""`harvest park list | show | retry | drop`: list parked records, send them again, or delete them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harvest_lib.cli.confirmation import DryRun, Yes, ask, require_answer
from harvest_lib.cli.options import ConfigFile, Json, OnlyTopics, names_of, open_outbox
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import age, counted, json_text
from harvest_lib.cli.usage import Misuse, require_topics

if TYPE_CHECKING:
    import psycopg

    from harvest_lib.config import HarvestConfig
    from harvest_lib.config.columns import ColumnMapping, Part
    from harvest_lib.outbox.parking import ParkedIdTable, ParkedRecord, ParkedRecords, ParkedRow, ParkedSelection

app = group("park", "Parked records, which Kafka rejected: list, retry or delete them.")

_Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Ids of records, as shown by `list`.")]
_Key = Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")]
_All = Annotated[bool, typer.Option("--all", help="All parked records.")]

_NOTHING_PARKED = "no matching record is parked"
_HEADER_COLUMNS = ("kafka_header_keys", "kafka_header_values")
_SHOWN_COLUMNS = {"id", "create_time", "kafka_topic", "kafka_key", *_HEADER_COLUMNS, "leader_id"}

_Subscription = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        metavar="NAME",
        help="Whose records, if the outbox is harvested in batches. Default: the configuration's.",
        show_default=False,
    ),
]


@app.command("list")
def list_(
    config: ConfigFile = None,
    topic: OnlyTopics = None,
    key: _Key = None,
    subscription: _Subscription = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Show at most this many.")] = 100,
    as_json: Json = False,
) -> None:
    """List parked records and the records held behind them, in order, without payloads.

    Examples:

      harvest park list -f harvest.yaml

      harvest park list -f harvest.yaml --topic orders --json | jq '.[].id'
    """
    from harvest_lib.cli.tables import print_table, table_of
    from harvest_lib.outbox.parking import ParkedSelection

    selection = ParkedSelection(topics=_topics(topic), key=key)
    with _open_parked(config, subscription) as (parked, connection, _):
        records = parked.list(connection, selection, limit=limit)
        counts = parked.counts(connection, selection)
    if as_json:
        typer.echo(json_text([_record_json(record) for record in records]))
        return
    if not records:
        typer.echo("nothing is parked" if selection == ParkedSelection() else _NOTHING_PARKED)
        return
    rows = [(str(each.id), each.topic, each.key, _state(each), age(each.age_seconds), each.reason) for each in records]
    print_table(table_of(rows, ("id", "topic", "key", "state", "age", "reason")))
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

      harvest park show 4711 -f harvest.yaml

      harvest park show 4711 -f harvest.yaml --value --json | jq -r .row.kafka_value
    """
    from harvest_lib.cli.tables import print_table, table_of

    with _open_parked(config, subscription) as (parked, connection, harvest):
        record = parked.show(connection, record_id)
    if as_json:
        shown = _shown_columns(harvest.columns)
        row = {name: content for name, content in record.row.items() if value or name in shown}
        typer.echo(json_text({**_record_json(record), "row": row}))
        return
    print_table(table_of(_record_fields(record, harvest.columns, with_value=value)))


@app.command()
def retry(
    ids: _Ids = None,
    config: ConfigFile = None,
    topic: OnlyTopics = None,
    key: _Key = None,
    all_: _All = False,
    subscription: _Subscription = None,
    as_json: Json = False,
) -> None:
    """Put parked records, and the records held behind them, back into the outbox. Do this after you removed the cause.

    The records keep their old positions. A record waits if an earlier record of
    its key stays parked, unless the policy is `parking: skip`. The command needs
    INSERT on the outbox.

    In an outbox that is harvested in batches, the records never left it. The leader
    sends them within about a second; without a leader, the next leader does.

    Examples:

      harvest park retry 4711 4712 -f harvest.yaml

      harvest park retry --topic orders -f harvest.yaml

      harvest park retry --all -f harvest.yaml --json
    """
    from harvest_lib.outbox.parking import ParkedRecords

    selection = _selected(ids, topic, key, everything=all_)
    with _open_parked(config, subscription) as (parked, connection, harvest):
        done = parked.retry(connection, selection, keep_order=harvest.parking != "skip")
    if as_json:
        typer.echo(json_text(asdict(done)))
        return
    verb = "put back" if isinstance(parked, ParkedRecords) else "will be sent again"
    typer.echo(f"{verb}: {counted(done.parked, 'parked record')}, and {done.held:,} held behind them")
    if done.waiting:
        behind = ", ".join(map(str, done.behind))
        verb, pronoun = ("waits", "its key") if done.waiting == 1 else ("wait", "their keys")
        typer.echo(f"{done.waiting:,} {verb} behind an earlier record of {pronoun} that is still parked: {behind}")


@app.command()
def drop(
    ids: _Ids = None,
    config: ConfigFile = None,
    topic: OnlyTopics = None,
    key: _Key = None,
    all_: _All = False,
    subscription: _Subscription = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete parked records permanently, and put records held behind them back into the outbox.

    --topic, --key and --all select only parked records. To delete a held record,
    name its id.

    Examples:

      harvest park drop 4711 -f harvest.yaml

      harvest park drop --topic orders -f harvest.yaml --dry-run

      harvest park drop --key o-1 -f harvest.yaml --yes
    """
    from harvest_lib.outbox.parking import ParkedRecords

    selection = _selected(ids, topic, key, everything=all_)
    require_answer(yes=yes or dry_run)
    with _open_parked(config, subscription) as (parked, connection, _):
        if not yes or dry_run:
            counts = parked.counts(connection, selection)
            number = len(selection.ids or ()) or (counts.parked if counts is not None else 0)
            if not number:
                typer.echo(_NOTHING_PARKED, err=True)
                return
            if dry_run:
                typer.echo(f"would delete: {counted(number, 'parked record')}")
                return
            ask(f"Delete {counted(number, 'parked record')} permanently?", yes=yes)
        done = parked.drop(connection, selection)
    if as_json:
        typer.echo(json_text(asdict(done)))
    else:
        verb = "put back" if isinstance(parked, ParkedRecords) else "will be sent"
        typer.echo(f"dropped: {counted(done.dropped, 'parked record')}; {verb}: {done.released:,} held behind them")


@contextmanager
def _open_parked(
    config: Path | None, subscription: str | None
) -> "Iterator[tuple[ParkedRecords | ParkedIdTable, psycopg.Connection[Any], HarvestConfig]]":
    from harvest_lib.source.parked import readable_parked_table

    with open_outbox(config) as (harvest, table, connection):
        yield readable_parked_table(connection, table, harvest, subscription), connection, harvest


def _selected(
    ids: list[int] | None, topic: list[str] | None, key: str | None, *, everything: bool
) -> "ParkedSelection":
    from harvest_lib.outbox.parking import ParkedSelection

    if [bool(ids), bool(topic) or key is not None, everything].count(True) != 1:
        raise Misuse(
            "it is not clear which records are meant",
            next_step="give ids, or --topic and --key, or --all: one of the three",
        )
    return ParkedSelection(ids=ids or None, topics=_topics(topic), key=key)


def _topics(given: list[str] | None) -> list[str] | None:
    topics = names_of(given)
    require_topics(topics, "--topic")
    return topics or None


def _record_json(record: "ParkedRecord") -> dict[str, object]:
    return {**asdict(record), "parked_at": record.parked_at.isoformat()}


def _state(record: "ParkedRecord") -> tuple[str, str]:
    if record.gone:
        return "no longer in the outbox", "dim"
    return ("held", "dim") if record.held else ("parked", "yellow")


def _record_fields(
    record: "ParkedRow", columns: "ColumnMapping | None", *, with_value: bool
) -> Iterator[tuple[str, str]]:
    row = record.row
    yield "id", str(record.id)
    yield "topic", record.topic
    yield "key", record.key
    yield "state", _state(record)[0]
    yield "reason", record.reason
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
    value_part = "kafka_value" if columns is None else columns.kafka_value
    payload = _part(row, value_part)
    if payload is None:
        yield "value", "none: a tombstone"
    else:
        yield "value", _text(payload) if with_value else f"{len(_text(payload)):,} characters, shown with --value"
    others = [name for name in row if name not in {*_shown_columns(columns), value_part}]
    if with_value:
        yield from ((f"column {name}", _text(row[name])) for name in others)
    elif others:
        yield "other columns", f"{len(others)}, shown with --value"


def _text(content: object) -> str:
    return "(none)" if content is None else content if isinstance(content, str) else json_text(content)


def _part(row: dict[str, Any], part: "Part") -> object:
    """Return the value of a part of a record: the value of its column, or its constant."""
    return row.get(part) if isinstance(part, str) else part.value


def _shown_columns(columns: "ColumnMapping | None") -> set[str]:
    """Return the names of the columns that are shown without --value."""
    if columns is None:
        return _SHOWN_COLUMNS
    parts = (columns.id, columns.transaction_id, columns.kafka_topic, columns.kafka_key, columns.create_time)
    named = (each for each in (*parts, *columns.headers.values()) if isinstance(each, str))
    return {each for each in named if each != columns.kafka_value}
