"""Compare topics of Kafka with the records committed in Postgres, by Spark, and keep the result in `harvest_audit`.

Without -f the harvester's settings come from HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS.

Exit codes: 0 all is well; 1 another error, or a crash; 3 bad arguments; 4 a table is missing or is not what it
should be; 5 database; 6 Kafka; 8 there is no such subscription, or the state of earlier audits is refused; 10 no
committed record was found, which proves nothing; 13 anomalies were found; 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harvest_lib.audit.textfile import audit_metrics
from harvest_lib.config import load
from harvest_lib.errors import FOUND_EXIT_CODE, ConfigError
from harvest_lib.spark.audit import MUST_BE_ZERO, AuditSummary, Business, audit
from harvest_lib.spark.command import Parser, run, tell
from harvest_lib.spark.session import JARS_VARIABLE

_DSN, _SERVERS, _CONFIG = "HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS", "HARVEST_CONFIG"


def _arguments() -> Parser:
    parser = Parser(
        module="harvest_lib.spark.audit",
        description=__doc__,
        example="-f harvest.yaml --topic flights --json",
    )
    parser.add_argument("-f", "--config", type=Path, help=f"the harvester's YAML (default: ${_CONFIG})")
    parser.add_argument("--dsn", help=f"libpq conninfo or URL, instead of the YAML's (default: ${_DSN})")
    parser.add_argument("--bootstrap-servers", help=f"instead of the YAML's (default: ${_SERVERS})")
    parser.add_argument("--topic", action="append", default=[], help="topic to audit; may be repeated")
    parser.add_argument("--outbox", help="the outbox table (default: the YAML's, else outbox)")
    parser.add_argument("--subscription", help="whose losses and backlog (default: the YAML's, else default)")
    parser.add_argument(
        "--table", default="flights", help="business table, where the outbox is purged (default: flights)"
    )
    parser.add_argument("--id-column", default="flight_id", help="its column of ids (default: flight_id)")
    parser.add_argument("--id-header", default="event-id", help="the header that has them (default: event-id)")
    parser.add_argument(
        "--committed",
        choices=["auto", "outbox", "ledger"],
        help="source of the committed records (default: ledger if the YAML's source is mark, else auto)",
    )
    parser.add_argument(
        "--state", type=Path, help="a folder: read only what came since the last audit that it holds, and add to it"
    )
    parser.add_argument(
        "--full", action="store_true", help="forget what the folder of --state holds, and read everything"
    )
    parser.add_argument("--audit-id", help="replace the results of this id (default: a new id)")
    parser.add_argument(
        "--jars", help=f"Spark's Kafka source and the JDBC driver, commas between (default: ${JARS_VARIABLE})"
    )
    parser.add_argument(
        "--allow-empty", action="store_true", help="exit with 0 where no committed record was found, instead of with 10"
    )
    parser.add_argument(
        "--metrics-file",
        type=Path,
        help="write the result there for the textfile collector of node_exporter; the name has to end in .prom",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def place_of(options: argparse.Namespace, *, for_producer: bool = False) -> dict[str, Any]:
    """Return the arguments of `audit` for Postgres, Kafka and the outbox: from options, else YAML, else environment."""
    path = options.config or (Path(os.environ[_CONFIG]) if os.environ.get(_CONFIG) else None)
    harvest = load(path).harvest if path is not None else None
    dsn = options.dsn or (harvest.data_source.conninfo() if harvest else os.environ.get(_DSN))
    kafka = dict(harvest.kafka_settings(for_producer=for_producer)) if harvest else {}
    servers = options.bootstrap_servers or (None if harvest else os.environ.get(_SERVERS))
    if servers:
        kafka["bootstrap.servers"] = servers
    for value, option, variable in (
        (dsn, "--dsn", _DSN),
        (kafka.get("bootstrap.servers"), "--bootstrap-servers", _SERVERS),
    ):
        if not value:
            raise ConfigError(
                f"{option} is missing", field=option, next_step=f"name a YAML with -f, give {option} or set {variable}"
            )
    return {
        "dsn": dsn,
        "kafka": kafka,
        "outbox": options.outbox or (harvest.outbox_table if harvest else "outbox"),
        "committed": options.committed or ("ledger" if harvest and harvest.source == "mark" else "auto"),
        "subscription": options.subscription or (harvest.subscription if harvest else "default"),
    }


def _sentences(summary: AuditSummary) -> str:
    verdict = "all is well" if summary.ok else "anomalies found" if summary.anomalies else "nothing was compared"
    lines = [f"audit {summary.audit_id}: {verdict}"]
    for name, value in asdict(summary).items():
        if name != "audit_id":
            shown = (
                "-"
                if value is None
                else f"{value:,}"
                if isinstance(value, int)
                else f"{value:,.1f}"
                if isinstance(value, float)
                else value
            )
            lines.append(f"  {name:<22} {shown}{'  <-' if name in MUST_BE_ZERO and value else ''}")
    return "\n".join(lines)


def _run(arguments: Sequence[str] | None) -> int:
    options = _arguments().parse_args(arguments)
    with audit_metrics(options.metrics_file, options.topic) as found:
        summary = audit(
            **place_of(options),
            topics=options.topic,
            business=Business(table=options.table, id_column=options.id_column, id_header=options.id_header),
            audit_id=options.audit_id,
            jars=options.jars,
            state=options.state,
            full=options.full,
        )
        ok = summary.ok or (options.allow_empty and not summary.anomalies)
        document = {**asdict(summary), "at": summary.at.isoformat(), "ok": ok}
        tell(json.dumps(document) if options.json else _sentences(summary))
        if not (ok or summary.anomalies):
            raise summary.nothing_checked("say --allow-empty")
        found.update(summary.metrics())
    return FOUND_EXIT_CODE if summary.anomalies else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return run(lambda: _run(arguments), interrupted="the result tables are as before")


if __name__ == "__main__":
    sys.exit(main())
