"""Load the flights of 2013 a day per batch, for an orchestrator with daily partitions.

Batches are called `flights-2013-01-31`. A table is loaded by days or by months, not by both: the ledger knows a batch
by its name, so a month would bring a day's flights again.

Exit codes: as of `harvest_lib.spark.flights.by_month`.
"""

import sys
from collections.abc import Iterator, Sequence
from datetime import date, timedelta

from pyspark.sql import functions as F

from harvest_lib.errors import ConfigError
from harvest_lib.spark.command import Parser, run, tell
from harvest_lib.spark.flights.job import INTERRUPTED, LoadOptions, add_options, follow, opened
from harvest_lib.spark.sink.report import BatchReport


def load_days(job: LoadOptions, *, first: date, last: date) -> Iterator[BatchReport]:
    """Load the days from `first` to `last`, both included, and yield the report of each day after its commit.

    Raises ConfigError, SourceError, OutboxTableError, BatchConflict or DatabaseError.
    """
    with opened(job) as flights:
        for offset in range((last - first).days + 1):
            day = first + timedelta(days=offset)
            rows = flights.rows.where(
                (F.col("year") == day.year) & (F.col("month") == day.month) & (F.col("day") == day.day)
            )
            yield flights.load(rows, f"flights-{day.isoformat()}")


def _day(text: str) -> date:
    return date.fromisoformat(text)


def _arguments() -> Parser:
    parser = Parser(
        module="harvest_lib.spark.flights.by_day",
        description=__doc__,
        example="--dsn 'host=127.0.0.1 dbname=app user=app' --first-day 2013-01-01",
    )
    add_options(parser)
    parser.add_argument("--first-day", required=True, type=_day, help="YYYY-MM-DD")
    parser.add_argument("--last-day", type=_day, help="YYYY-MM-DD, itself included (default: the first day)")
    return parser


def _run(arguments: Sequence[str] | None) -> None:
    options = _arguments().parse_args(arguments)
    last = options.last_day or options.first_day
    if last < options.first_day:
        raise ConfigError("the last day is before the first", field="--last-day", next_step="swap them")
    summary = follow(load_days(LoadOptions.of(options), first=options.first_day, last=last), BatchReport.as_json)
    tell(summary.as_json())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, which writes a JSON object per day and one of the whole run; return its exit code."""
    return run(lambda: _run(arguments), interrupted=INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
