"""`harvest audit`: of what was committed, what is in Kafka? And `harvest audit history`: was the promise kept?"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from psycopg import sql
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harvest_lib import audit as audits
from harvest_lib.cli.history import history
from harvest_lib.cli.options import AllowEmpty, ConfigFile, Json, configuration
from harvest_lib.cli.tables import print_table
from harvest_lib.config import HarvestConfig
from harvest_lib.database import in_statement
from harvest_lib.errors import NothingChecked
from harvest_lib.harvester.factory import make_selection
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.row_security import all_rows_guard

_ROWS = {
    "committed": "committed",
    "delivered": "delivered, each counted once",
    "pending": "still waiting in the outbox",
    "purged": "delivered and purged from the outbox",
    "lost": "lost: committed, neither in Kafka nor waiting",
    "unknown": "unknown: in Kafka, never committed",
    "wrong_keys": "under another key than committed",
    "reordered": "reordered: first occurrences out of order",
    "order_violations": "order violations: any step back of a key",
    "split_keys": "keys in several partitions",
    "duplicates": "duplicates",
    "adjacent_duplicates": "  directly after the same record",
    "separated_duplicates": "  with others of the key between",
    "unexplained_duplicates": "  unexplained: not sent again by a later term",
    "foreign": "records without an id (foreign)",
}
_ALWAYS_SHOWN = ("committed", "delivered", "pending", "duplicates")


app = typer.Typer(name="audit", rich_markup_mode="rich")
app.command()(history)


@app.callback(invoke_without_command=True)
def audit(
    context: typer.Context,
    *,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Topic to read; may be given several times. Required.")
    ] = None,
    config: ConfigFile = None,
    committed: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Query of what was committed: id, key (optional), topic (optional)."),
    ] = None,
    committed_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same from a .csv file, or from JSON lines.")
    ] = None,
    pending: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Query of ids that still wait. Default: the outbox, if it has the ids."),
    ] = None,
    id_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Header with the id as text. Default: the outbox id in our own header."),
    ] = None,
    isolation: Annotated[
        audits.Isolation, typer.Option(help="Which of Kafka's records count: those committed or acknowledged, or all.")
    ] = "read_committed",
    show_examples: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N of each anomaly.")] = 5,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show keys, which may be personal data.")] = False,
    spill: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            writable=True,
            help="Where to put temporary data, 150 bytes a record. Default: the system's folder.",
        ),
    ] = None,
    allow_empty: AllowEmpty = False,
    as_json: Json = False,
) -> None:
    """Compare what was committed with what is in Kafka: lost, duplicated, reordered, unknown.

    Without --committed or --committed-file the outbox table is all that is known: what it no longer has counts as
    delivered and purged, so losses cannot be seen. Records that a topic's retention or compaction removed count as
    lost. Within a key, ids must ascend.

    Exits with 0 when all is well, 1 when anomalies were found, 3, 5 or 6 when configuration, Postgres or Kafka failed,
    10 when there was nothing to compare: no record was committed, and none of ours is in Kafka.

    Examples:

      harvest audit -f reaper.yaml --topic flights

      harvest audit -f reaper.yaml --topic flights --committed "SELECT outbox_id, tail_number FROM flights" --json

      harvest audit -f reaper.yaml --topic orders --id-header event-id --committed "SELECT id, customer FROM orders"

      harvest audit --topic flights --committed-file flights.csv --isolation read_uncommitted
    """
    if context.invoked_subcommand is not None:
        return
    if not topic:
        raise typer.BadParameter("say which topics: --topic", param_hint="--topic")
    if committed is not None and committed_file is not None:
        raise typer.BadParameter("give --committed or --committed-file, not both")
    if id_header is not None and committed is None and committed_file is None:
        raise typer.BadParameter("ids of --id-header are not in the outbox: give --committed or --committed-file")
    harvest = configuration(config).harvest
    conninfo = harvest.data_source.conninfo()
    outbox = _of_outbox(harvest, topic)
    outbox_has_the_ids = id_header is None and committed_file is None

    def from_database(query: str | sql.Composed | None) -> Iterator[audits.CommittedRecord]:
        return audits.read_query(conninfo, query, topics=topic) if query is not None else iter(())

    report = audits.audit(
        from_database(committed or outbox)
        if committed_file is None
        else audits.read_file(committed_file, topics=topic),
        chain.from_iterable(
            audits.read_topics(
                harvest.kafka_settings(for_producer=False), topic, isolation=isolation, id_header=id_header
            )
        ),
        pending=(record.id for record in from_database(pending or (outbox if outbox_has_the_ids else None))),
        committed_again=partial(from_database, committed) if committed is not None else None,
        purged_when_delivered=committed is None and committed_file is None,
        examples=show_examples,
        show_keys=show_keys,
        spill_directory=spill,
    )
    ok = report.ok or (report.is_empty and allow_empty)
    if as_json:
        typer.echo(json.dumps({**report.to_json(), "ok": ok, "empty": report.is_empty}))
    else:
        _show(report, topic)
    if report.is_empty and not allow_empty:
        raise NothingChecked(
            "the audit had nothing to compare",
            evidence=f"0 records were committed; of {report.records:,} records in Kafka none is the harvester's",
            next_step="check the topics, the outbox table and --committed; where it may be empty, say --allow-empty",
        )
    if not ok:
        raise typer.Exit(1)


def _of_outbox(harvest: HarvestConfig, topics: list[str]) -> sql.Composed:
    """Return the query of what the outbox has for topics, wherever `columns` says that it stands. It fails where rows
    are hidden from us: they would look as if they had been delivered."""
    table = OutboxTable.parse(harvest.outbox_table)
    selection = make_selection(harvest, table)
    named = sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(
        selection.columns["kafka_topic"], sql.SQL(", ").join(in_statement(sql.Literal(each)) for each in topics)
    )
    selection = replace(selection, conditions=[named], guard=all_rows_guard([table.identifier]))
    return selection.fill("SELECT id, kafka_key FROM (SELECT {columns} FROM {table} WHERE true {filter}) AS record")


def _show(report: audits.AuditReport, topics: list[str]) -> None:
    console = Console(highlight=False)
    verdict = "[green]all is well[/]" if report.ok else "[red]anomalies found[/]"
    verdict = "[yellow]nothing was compared[/]" if report.is_empty else verdict
    console.print(f"audit of {escape(', '.join(topics))}: {verdict}", soft_wrap=True)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, text in _ROWS.items():
        count = getattr(report, name)
        if name in audits.MUST_BE_ZERO:
            table.add_row(text, f"[{'red' if count else 'green'}]{count:,}[/]")
        elif count or name in _ALWAYS_SHOWN:
            table.add_row(text, f"{count:,}")
    print_table(table)
    for explanation in report.explanations:
        console.print(f"  {explanation}", soft_wrap=True)
    for moved in report.moved_keys:
        console.print(f"  {escape(str(moved))}", soft_wrap=True)
    for name, examples in report.examples.items():
        if name in audits.MUST_BE_ZERO:
            for example in examples:
                console.print(f"  {name}: {escape(_described(example))}", soft_wrap=True)


def _described(example: audits.Example) -> str:
    place = f" at {example.topic}/{example.partition}@{example.offset}" if example.topic is not None else ""
    key = f", key {example.key!r}" if example.key is not None else ""
    return f"id {example.id}{place}{key}"
