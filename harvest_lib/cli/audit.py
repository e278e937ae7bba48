"""`harvest audit`: compare committed records with Kafka."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import AllowEmpty, ConfigFile, Isolation, Json, configuration
from harvest_lib.cli.terminal import json_text
from harvest_lib.errors import NothingChecked


def audit(
    *,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Topic to read; may be repeated. Required.")
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
        Isolation, typer.Option(help="Which records of Kafka count: committed ones, or all.")
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
    allow_empty: AllowEmpty = False,
    as_json: Json = False,
) -> None:
    """Compare committed records with Kafka: find lost, duplicated, reordered and unknown ones.

    Without --committed or --committed-file, only the outbox table is known.
    Records that it no longer has count as delivered and purged: their losses
    cannot be detected. Of a table that keeps them, the position of the
    subscription tells those that must be in Kafka. Records that a topic's
    retention or compaction removed count as lost. Within a key, ids must ascend.

    Exits with 0 if there are no anomalies, 1 if there are, 3, 5 or 6 if
    configuration, Postgres or Kafka failed, 10 if there was nothing to compare:
    no record was committed, and Kafka has none of the harvester's.

    Examples:

      harvest audit -f reaper.yaml --topic flights

      harvest audit -f reaper.yaml --topic flights --committed "SELECT outbox_id, tail_number FROM flights" --json

      harvest audit -f reaper.yaml --topic orders --id-header event-id --committed "SELECT id, customer FROM orders"

      harvest audit --topic flights --committed-file flights.csv --isolation read_uncommitted
    """
    from psycopg import sql

    from harvest_lib import audit as audits

    if not topic:
        raise typer.BadParameter("name at least one topic: --topic", param_hint="--topic")
    if committed is not None and committed_file is not None:
        raise typer.BadParameter("give --committed or --committed-file, not both")
    if id_header is not None and committed is None and committed_file is None:
        raise typer.BadParameter("ids of --id-header are not in the outbox: give --committed or --committed-file")
    harvest = configuration(config).harvest
    conninfo = harvest.data_source.conninfo()
    outbox_has_the_ids = id_header is None and committed_file is None
    outbox = waiting = None
    if (committed is None and committed_file is None) or (pending is None and outbox_has_the_ids):
        outbox, waiting = actions.audit.outbox_queries(harvest, topic)

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
        pending=(record.id for record in from_database(pending or (waiting if outbox_has_the_ids else None))),
        committed_again=partial(from_database, committed) if committed is not None else None,
        purged_when_delivered=committed is None and committed_file is None,
        examples=show_examples,
        show_keys=show_keys,
        spill_directory=spill,
    )
    ok = report.ok or (report.is_empty and allow_empty)
    if as_json:
        typer.echo(json_text({**report.to_json(), "ok": ok, "empty": report.is_empty}))
    else:
        actions.audit.show_report(report, topic)
    if report.is_empty and not allow_empty:
        raise NothingChecked(
            "the audit had nothing to compare",
            evidence=f"0 records were committed; of {report.records:,} records in Kafka none is the harvester's",
            next_step="check the topics, the outbox table and --committed; if it may be empty, use --allow-empty",
        )
    if not ok:
        raise typer.Exit(1)
