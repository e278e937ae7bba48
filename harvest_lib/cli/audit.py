"""`harvest audit`: compare committed records with Kafka."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harvest_lib.cli.audit_sources import committed_and_pending
from harvest_lib.cli.options import AllowEmpty, ConfigFile, Isolation, Json, configuration, names_of
from harvest_lib.cli.terminal import json_text, unread_output
from harvest_lib.cli.usage import Misuse, require_topics
from harvest_lib.errors import FOUND_EXIT_CODE, NothingChecked

if TYPE_CHECKING:
    from harvest_lib import audit as audits

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
        raise Misuse("--topic is missing", next_step="name at least one topic: --topic orders")
    require_topics(topics, "--topic")
    if committed is not None and not committed.strip():
        raise Misuse("the query of --committed is empty", next_step="write a query, or leave the option out")
    if committed is not None and committed_file is not None:
        raise Misuse("--committed and --committed-file exclude each other", next_step="give one of them")
    if id_header is not None and committed is None and committed_file is None:
        raise Misuse("ids of --id-header are not in the outbox", next_step="give --committed or --committed-file too")
    if metrics_file is not None and metrics_file.suffix != ".prom" and not metrics_file.is_dir():
        raise Misuse(
            f"--metrics-file {str(metrics_file)!r} does not end in .prom, so node_exporter would not read it",
            next_step=f"name it {metrics_file.with_suffix('.prom')}",
        )
    report = None
    try:
        with audit_metrics(metrics_file, topics) as found:
            harvest = configuration(config).harvest
            sources = committed_and_pending(
                harvest, topics, committed_file if committed is None else committed, pending, id_header
            )
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
