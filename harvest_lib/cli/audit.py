"""`harvest audit`: of what was committed, what is in Kafka? And `harvest audit history`: was the promise kept?"""

import json
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.cli.history import history
from harvest_lib.cli.options import AllowEmpty, ConfigFile, Isolation, Json, configuration
from harvest_lib.cli.parsing import Group
from harvest_lib.errors import NothingChecked

app = typer.Typer(name="audit", cls=Group, rich_markup_mode="rich")
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
        Isolation, typer.Option(help="Which of Kafka's records count: those committed or acknowledged, or all.")
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
    from psycopg import sql

    from harvest_lib import audit as audits
    from harvest_lib.cli.actions.audit import outbox_query, show_report

    if not topic:
        raise typer.BadParameter("say which topics: --topic", param_hint="--topic")
    if committed is not None and committed_file is not None:
        raise typer.BadParameter("give --committed or --committed-file, not both")
    if id_header is not None and committed is None and committed_file is None:
        raise typer.BadParameter("ids of --id-header are not in the outbox: give --committed or --committed-file")
    harvest = configuration(config).harvest
    conninfo = harvest.data_source.conninfo()
    outbox = outbox_query(harvest, topic)
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
        show_report(report, topic)
    if report.is_empty and not allow_empty:
        raise NothingChecked(
            "the audit had nothing to compare",
            evidence=f"0 records were committed; of {report.records:,} records in Kafka none is the harvester's",
            next_step="check the topics, the outbox table and --committed; where it may be empty, say --allow-empty",
        )
    if not ok:
        raise typer.Exit(1)
