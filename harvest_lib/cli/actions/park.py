"""Parked records for `harvest park`, and their output."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import psycopg
import typer
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.actions.outbox import open_outbox
from harvest_lib.cli.actions.tables import print_table
from harvest_lib.cli.terminal import age, json_text, printable
from harvest_lib.config import HarvestConfig
from harvest_lib.config.columns import ColumnMapping, Constant, Part
from harvest_lib.outbox import (
    OutboxTable,
    ParkedIdTable,
    ParkedRecord,
    ParkedRecords,
    ParkedRow,
    ParkedSelection,
    Retried,
)
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.source.selection import COLUMNS, columns_of

NOTHING_PARKED = "no matching record is parked"
_HEADER_COLUMNS = ("kafka_header_keys", "kafka_header_values")
_KNOWN_COLUMNS = ("id", "create_time", "kafka_topic", "kafka_key", "kafka_value", *_HEADER_COLUMNS, "leader_id")


def parked_table(
    connection: "psycopg.Connection[Any]", table: OutboxTable, config: HarvestConfig, subscription: str | None = None
) -> ParkedRecords | ParkedIdTable:
    """Return the table in which the configuration's source parks records: of a subscription if it reads in batches."""
    mapped = config.columns is not None
    if config.source == "mark" or not (mapped or subscription is not None or table.kind(connection) == "native"):
        return ParkedRecords(table)
    columns = COLUMNS if config.columns is None else columns_of(config.columns)
    return ParkedIdTable(table, subscription or config.subscription, columns["id"], columns["transaction_id"])


@contextmanager
def open_parked(
    config: Any, subscription: str | None
) -> Iterator[tuple[ParkedRecords | ParkedIdTable, "psycopg.Connection[Any]", HarvestConfig]]:
    with open_outbox(config) as (harvest, table, connection):
        parked = parked_table(connection, table, harvest, subscription)
        if isinstance(parked, ParkedRecords):
            check_all_rows(connection, [parked.table.identifier])
        yield parked, connection, harvest


def selected(ids: list[int] | None, topic: str | None, key: str | None, *, everything: bool) -> ParkedSelection:
    if [bool(ids), topic is not None or key is not None, everything].count(True) != 1:
        raise typer.BadParameter("say which records: ids, or --topic and --key, or --all")
    return ParkedSelection(ids=ids or None, topic=topic, key=key)


def record_json(record: ParkedRecord) -> dict[str, object]:
    return {**asdict(record), "parked_at": record.parked_at.isoformat()}


def show_records(records: Sequence[ParkedRecord]) -> None:
    table = Table("id", "topic", "key", "state", "age", "reason")
    for record in records:
        state = Text("held", "dim") if record.held else Text("parked", "yellow")
        if record.gone:
            state = Text("no longer in the outbox", "dim")
        texts = [Text(printable(text)) for text in (record.topic, record.key)]
        table.add_row(str(record.id), *texts, state, age(record.age_seconds), Text(printable(record.reason)))
    print_table(table)


def show_fields(record: ParkedRow, columns: ColumnMapping | None, *, with_value: bool) -> None:
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, content in _record_fields(record, columns, with_value=with_value):
        table.add_row(Text(name), Text(content))
    print_table(table)


def _record_fields(record: ParkedRow, columns: ColumnMapping | None, *, with_value: bool) -> Iterator[tuple[str, str]]:
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
            f"{len(payload if isinstance(payload, str) else json_text(payload)):,} characters, shown with --value",
        )
    known = {*shown_columns(columns), "kafka_value" if columns is None else columns.kafka_value}
    others = [name for name in row if name not in known]
    if with_value:
        yield from ((f"column {printable(name)}", _text(row[name])) for name in others)
    elif others:
        yield "other columns", f"{len(others)}, shown with --value"


def _text(content: object) -> str:
    return "(none)" if content is None else printable(content if isinstance(content, str) else json_text(content))


def _part(row: dict[str, Any], part: Part) -> object:
    """Return a part of a record with mapped columns: a column's value or a constant."""
    return part.value if isinstance(part, Constant) else row.get(part)


def shown_columns(columns: ColumnMapping | None) -> set[str]:
    """Return the columns that are shown without --value."""
    if columns is None:
        return {*_KNOWN_COLUMNS} - {"kafka_value"}
    parts = (columns.id, columns.transaction_id, columns.kafka_topic, columns.kafka_key, columns.create_time)
    named = {each for each in (*parts, *columns.headers.values()) if isinstance(each, str)}
    return named - {columns.kafka_value if isinstance(columns.kafka_value, str) else ""}


def counted_records(number: int) -> str:
    return f"{number:,} parked {'record' if number == 1 else 'records'}"


def waiting_text(done: Retried) -> str:
    behind = ", ".join(str(record_id) for record_id in done.behind)
    verb, pronoun = ("waits", "its key") if done.waiting == 1 else ("wait", "their keys")
    return f"{done.waiting:,} {verb} behind an earlier record of {pronoun} that is still parked: {behind}"
