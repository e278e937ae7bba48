"""`harvest audit`: compare committed records with Kafka."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harvest_lib.cli.options import AllowEmpty, ConfigFile, Isolation, Json, configuration, names_of
from harvest_lib.cli.terminal import json_text, unread_output
from harvest_lib.errors import FOUND_EXIT_CODE, NothingChecked

if TYPE_CHECKING:
    from psycopg import sql

    from harvest_lib import audit as audits
    from harvest_lib.config import HarvestConfig

    _Records = Iterator[audits.CommittedRecord]

_ROWS = {
    "committed": "committed",
    "delivered": "delivered, without duplicates",
    "pending": "not delivered yet, in the outbox",
    "purged": "delivered and purged from the outbox",
    "lost": "lost: committed, neither in Kafka nor pending",
    "unknown": "unknown: in Kafka, never committed",
    "other_contents": "with another value than committed",
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
# In a database in SQL_ASCII contents are not selected, because bytes that are not text in any encoding arrive in Kafka
# in several forms.
_CONTENTS = """
SELECT id, kafka_key, kafka_topic, CASE WHEN getdatabaseencoding() <> 'SQL_ASCII' THEN CONTENT END
FROM (SELECT {columns} FROM {table} WHERE true {filter}) AS record
"""
_PARKED = "SELECT id, kafka_key FROM {parked} WHERE kafka_topic = ANY (ARRAY[{topics}]::text[])"
_IS_LISTED = "{id} IN (SELECT id FROM {parked_ids} WHERE subscription = {subscription})"


def audit(
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Topics to read, with commas between them; may be repeated. Required."),
    ] = None,
    config: ConfigFile = None,
    committed: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Query of the committed records: id, key (optional), topic (optional)."),
    ] = None,
    committed_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The committed records, from a .csv file or JSON lines.")
    ] = None,
    pending: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Query of the ids not yet delivered. Default: by the outbox, if it has the ids."
        ),
    ] = None,
    id_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Header with the id as text. Default: the outbox id in the header `harvest`."
        ),
    ] = None,
    isolation: Annotated[
        Isolation,
        typer.Option(
            metavar="read_committed|read_uncommitted", help="Kafka records that count: committed records, or all."
        ),
    ] = "read_committed",
    show_examples: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N of each anomaly.")] = 5,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show keys. They may be personal data.")] = False,
    spill: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            writable=True,
            help="Folder for temporary data, 150 bytes per record. Default: the system's.",
        ),
    ] = None,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the result there for node_exporter's textfile collector. The name has to end in .prom.",
        ),
    ] = None,
    allow_empty: AllowEmpty = False,
    as_json: Json = False,
) -> None:
    """Compare committed records with Kafka: find lost, duplicated, reordered and unknown records.

    Without --committed or --committed-file, only the outbox table is known. Records
    that it no longer has count as delivered and purged: their losses cannot be
    detected. If the table keeps records, records before the subscription's position
    must be in Kafka. Records that a topic's retention or compaction removed count
    as lost. Within a key, ids must ascend.

    Exits with 0 if there are no anomalies, 13 if there are, 3, 5 or 6 if
    configuration, Postgres or Kafka failed, 10 if there was nothing to compare:
    no record was committed, and Kafka has none of the harvester's.

    Examples:

      harvest audit -f harvest.yaml --topic flights

      harvest audit -f harvest.yaml --topic flights --committed "SELECT outbox_id, tail_number FROM flights" --json

      harvest audit -f harvest.yaml --topic orders --id-header event-id --committed "SELECT id, customer FROM orders"

      harvest audit --topic flights --committed-file flights.csv --isolation read_uncommitted
    """
    from harvest_lib import audit as audits
    from harvest_lib.audit.textfile import audit_metrics

    topics = names_of(topic)
    if not topics:
        raise typer.BadParameter("name at least one topic: --topic", param_hint="--topic")
    if committed is not None and not committed.strip():
        raise typer.BadParameter("the query is empty", param_hint="--committed")
    if committed is not None and committed_file is not None:
        raise typer.BadParameter("give --committed or --committed-file, not both")
    if id_header is not None and committed is None and committed_file is None:
        raise typer.BadParameter("ids of --id-header are not in the outbox: give --committed or --committed-file")
    report = None
    try:
        with audit_metrics(metrics_file, topics) as found:
            harvest = configuration(config).harvest
            sources = _sources(harvest, topics, committed_file if committed is None else committed, pending, id_header)
            in_kafka = audits.read_topics(
                harvest.kafka_settings(for_producer=False), topics, isolation=isolation, id_header=id_header
            )
            report = audits.audit(
                sources.committed,
                chain.from_iterable(in_kafka),
                pending=(record.id for record in sources.pending),
                committed_again=sources.committed_again,
                purged_when_delivered=committed is None and committed_file is None,
                examples=show_examples,
                show_keys=show_keys,
                spill_directory=spill,
            )
            if report.is_empty and not allow_empty:
                raise NothingChecked(
                    "the audit had nothing to compare",
                    evidence=f"0 records were committed; of {report.records:,} records in Kafka none is the "
                    "harvester's",
                    next_step="check the topics, the outbox table and --committed; if it may be empty, use "
                    "--allow-empty",
                )
            found.update({name: getattr(report, name) for name in audits.MUST_BE_ZERO})
    finally:  # show the report even if the file of metrics could not be written
        if report is not None:
            ok = report.ok or (report.is_empty and allow_empty)
            with unread_output():
                _show(report, topics, ok=ok, as_json=as_json)
    if not ok:
        raise typer.Exit(FOUND_EXIT_CODE)


class _Sources(NamedTuple):
    """The committed records; a function that repeats the query of committed records, None without a query; and the
    undelivered records."""

    committed: "_Records"
    committed_again: "Callable[[], _Records] | None"
    pending: "_Records"


def _sources(
    harvest: "HarvestConfig",
    topics: list[str],
    committed: str | Path | None,
    pending: str | None,
    id_header: str | None,
) -> _Sources:
    """Return the records to compare with Kafka. `committed` is a query or a file, `pending` a query. If `committed` is
    None, the committed records are read from the outbox. If `pending` is None, the undelivered records are read from
    the outbox, but only if the compared ids are the ids in the outbox."""
    from harvest_lib import audit as audits

    conninfo = harvest.data_source.conninfo()

    def from_database(query: "str | sql.Composed | None") -> "_Records":
        return audits.read_query(conninfo, query, topics=topics) if query is not None else iter(())

    outbox = waiting = None
    outbox_has_the_ids = id_header is None and not isinstance(committed, Path)
    if committed is None or (pending is None and outbox_has_the_ids):
        outbox, waiting = _outbox_queries(harvest, topics)
    waits = from_database(pending or (waiting if outbox_has_the_ids else None))
    if isinstance(committed, Path):
        return _Sources(audits.read_file(committed, topics=topics), None, waits)
    again = partial(from_database, committed) if committed is not None else None
    return _Sources(from_database(committed or outbox), again, waits)


def _outbox_queries(harvest: "HarvestConfig", topics: list[str]) -> "tuple[sql.Composed, sql.Composed]":
    """Return two queries of the outbox: all records, and undelivered or parked records.

    Both queries select records of the given topics that pass the subscription's filter, and apply the setting
    `columns`. If rows stay in the outbox after delivery, the subscription's position decides which rows count as
    delivered. The queries fail if row security hides rows from this role, because hidden rows would look delivered.
    Raises DatabaseError and CheckpointError.
    """
    from psycopg import sql

    from harvest_lib.audit.records import CONTENT
    from harvest_lib.harvester.assembly.factory import make_selection
    from harvest_lib.outbox import OutboxTable
    from harvest_lib.outbox.parking import ParkedIdTable
    from harvest_lib.outbox.row_security import all_rows_guard
    from harvest_lib.postgres.database import connect, in_statement
    from harvest_lib.source.filters import filter_conditions
    from harvest_lib.source.parked import parked_table
    from harvest_lib.subscriptions.delivered import delivered, shards_of

    table = OutboxTable.parse(harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        shards = shards_of(connection, table, harvest.subscription)
        parked = parked_table(connection, table, harvest)
        is_parked = parked.exists(connection)
        is_mapped = harvest.columns is not None  # rows of a mapped table may change after their delivery
        is_bytes = not is_mapped and table.value_type(connection) == "bytea"
    value = "kafka_value" if is_bytes else "convert_to(kafka_value, 'UTF8')"
    records = _RECORDS if is_mapped else _CONTENTS.replace("CONTENT", CONTENT.format(value=value))
    own = make_selection(harvest, table)
    listed = sql.SQL(", ").join(in_statement(sql.Literal(each)) for each in topics)
    conditions: list[sql.Composable] = [
        sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(own.columns["kafka_topic"], listed),
        *(filter_conditions(shards[0].topics, shards[0].keys, own.columns) if shards else ()),
    ]
    every = replace(own, conditions=conditions, guard=all_rows_guard([table.identifier]))
    waits: sql.Composable = sql.SQL("true")
    if any(not each.marks for each in shards):
        waits = sql.SQL("NOT ({})").format(delivered(shards, own.columns))
        if is_parked and isinstance(parked, ParkedIdTable):
            is_listed = sql.SQL(_IS_LISTED).format(
                id=own.columns["id"],
                parked_ids=in_statement(parked.table.identifier),
                subscription=in_statement(sql.Literal(harvest.subscription)),
            )
            waits = sql.SQL("({} OR {})").format(waits, is_listed)
    waiting = replace(every, conditions=[*conditions, waits]).fill(_RECORDS)
    if is_parked and not isinstance(parked, ParkedIdTable):
        also = sql.SQL(_PARKED).format(parked=in_statement(parked.table.identifier), topics=listed)
        waiting = sql.SQL("({}) UNION ALL ({})").format(waiting, also)
    return every.fill(records), waiting


def _show(report: "audits.AuditReport", topics: list[str], *, ok: bool, as_json: bool) -> None:
    from harvest_lib import audit as audits
    from harvest_lib.cli.tables import Cell, print_line, print_table, table_of

    if as_json:
        typer.echo(json_text({**report.to_json(), "ok": ok, "empty": report.is_empty}))
        return
    verdict = ("no anomalies", "green") if report.ok else ("anomalies found", "red")
    print_line(f"audit of {', '.join(topics)}: ", ("nothing was compared", "yellow") if report.is_empty else verdict)
    rows: list[tuple[str, Cell]] = []
    for name, text in _ROWS.items():
        count = getattr(report, name)
        if name in audits.MUST_BE_ZERO:
            rows.append((text, (f"{count:,}", "red" if count else "green")))
        elif count or name in _ALWAYS_SHOWN:
            rows.append((text, f"{count:,}"))
    table = table_of(rows)
    table.columns[1].justify = "right"
    print_table(table)
    for each in (*report.explanations, *report.moved_keys):
        print_line(f"  {each}")
    for name, examples in report.examples.items():
        if name in audits.MUST_BE_ZERO:
            for example in examples:
                print_line(f"  {name}: {_described(example)}")


def _described(example: "audits.Example") -> str:
    place = f" at {example.topic}/{example.partition}@{example.offset}" if example.topic is not None else ""
    key = f", key {example.key!r}" if example.key is not None else ""
    return f"id {example.id}{place}{key}"
