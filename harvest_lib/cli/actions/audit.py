"""What `harvest audit` reads from the outbox and how it shows its report."""

from dataclasses import replace

from psycopg import sql
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harvest_lib import audit as audits
from harvest_lib.cli.actions.tables import print_table
from harvest_lib.config import HarvestConfig
from harvest_lib.database import in_statement
from harvest_lib.harvester.factory import make_selection
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.row_security import all_rows_guard

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


def outbox_query(harvest: HarvestConfig, topics: list[str]) -> sql.Composed:
    """Return the query of the outbox's records for topics, with `columns` applied. It fails if row security hides rows
    from this role: hidden rows would look delivered."""
    table = OutboxTable.parse(harvest.outbox_table)
    selection = make_selection(harvest, table)
    named = sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(
        selection.columns["kafka_topic"], sql.SQL(", ").join(in_statement(sql.Literal(each)) for each in topics)
    )
    selection = replace(selection, conditions=[named], guard=all_rows_guard([table.identifier]))
    return selection.fill("SELECT id, kafka_key FROM (SELECT {columns} FROM {table} WHERE true {filter}) AS record")


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
