"""Queries of `harvest audit` for the outbox, and the output of its report."""

from dataclasses import replace

from psycopg import sql
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harvest_lib import audit as audits
from harvest_lib.cli.actions.park import parked_table
from harvest_lib.cli.actions.tables import print_table
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect, in_statement
from harvest_lib.harvester.factory import make_selection
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parked import ParkedRecords
from harvest_lib.outbox.parked_ids import ParkedIdTable
from harvest_lib.outbox.row_security import all_rows_guard
from harvest_lib.source.filters import filter_conditions
from harvest_lib.subscriptions.delivered import delivered, shards_of

_ROWS = {
    "committed": "committed",
    "delivered": "delivered, without duplicates",
    "pending": "not delivered yet, in the outbox",
    "purged": "delivered and purged from the outbox",
    "lost": "lost: committed, neither in Kafka nor pending",
    "unknown": "unknown: in Kafka, never committed",
    "wrong_keys": "with another key than committed",
    "reordered": "reordered: first occurrences out of order",
    "order_violations": "order violations: all steps back within a key",
    "split_keys": "keys in several partitions",
    "duplicates": "duplicates",
    "adjacent_duplicates": "  directly after the original",
    "separated_duplicates": "  after other records of the key",
    "unexplained_duplicates": "  unexplained: not sent again by a later term",
    "foreign": "records without an id (foreign)",
}


_ALWAYS_SHOWN = ("committed", "delivered", "pending", "duplicates")


_RECORDS = "SELECT id, kafka_key FROM (SELECT {columns} FROM {table} WHERE true {filter}) AS record"
_PARKED = "SELECT id, kafka_key FROM {parked} WHERE kafka_topic = ANY (ARRAY[{topics}]::text[])"
_IS_LISTED = "{id} IN (SELECT id FROM {parked_ids} WHERE subscription = {subscription})"


def outbox_queries(harvest: HarvestConfig, topics: list[str]) -> tuple[sql.Composed, sql.Composed]:
    """Return the queries of the outbox's records for topics that the subscription reads, with `columns` applied: of
    all, and of those that are not delivered yet, or parked.

    Where rows stay in the outbox, the subscription's position says which are delivered. The queries fail if row
    security hides rows from this role: hidden rows would look delivered. Raises DatabaseError and CheckpointError.
    """
    table = OutboxTable.parse(harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        shards = shards_of(connection, table, harvest.subscription)
        parked = parked_table(connection, table, harvest)
        is_parked = parked.exists(connection)
    own = make_selection(harvest, table)
    listed = sql.SQL(", ").join(in_statement(sql.Literal(each)) for each in topics)
    conditions: list[sql.Composable] = [
        sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(own.columns["kafka_topic"], listed),
        *(filter_conditions(shards[0].topics, shards[0].keys, own.columns) if shards else ()),
    ]
    every = replace(own, conditions=conditions, guard=all_rows_guard([table.identifier]))
    waits: sql.Composable = sql.SQL("true")
    if any(each.source != "mark" for each in shards):
        waits = sql.SQL("NOT ({})").format(delivered(shards, own.columns))
        if is_parked and isinstance(parked, ParkedIdTable):
            is_listed = sql.SQL(_IS_LISTED).format(
                id=own.columns["id"],
                parked_ids=in_statement(parked.table.identifier),
                subscription=in_statement(sql.Literal(harvest.subscription)),
            )
            waits = sql.SQL("({} OR {})").format(waits, is_listed)
    waiting = replace(every, conditions=[*conditions, waits]).fill(_RECORDS)
    if is_parked and isinstance(parked, ParkedRecords):
        also = sql.SQL(_PARKED).format(parked=in_statement(parked.table.identifier), topics=listed)
        waiting = sql.SQL("({}) UNION ALL ({})").format(waiting, also)
    return every.fill(_RECORDS), waiting


def show_report(report: audits.AuditReport, topics: list[str]) -> None:
    console = Console(highlight=False)
    verdict = "[green]no anomalies[/]" if report.ok else "[red]anomalies found[/]"
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
