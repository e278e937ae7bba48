"""Load the flights of 2013 into Postgres, a month per batch, each flight with its outbox row.

Business rows and outbox rows of a month commit together, once: running the job again writes nothing twice. A record's
key is the aircraft's tail number; without a tail number the key is carrier and flight number, such as `UA1545`.

Exit codes: 0 all months are promoted; 3 bad arguments or source file; 4 the outbox table is missing or of another kind;
5 database; 8 a batch id has other data than when it was promoted; 130 interrupted.
"""

import sys
from collections.abc import Iterator, Sequence

from harvest_lib.errors import ConfigError
from harvest_lib.spark.command import Parser, run, tell
from harvest_lib.spark.flights.job import INTERRUPTED, LoadOptions, add_options, follow, opened
from harvest_lib.spark.flights.source import batches_of, flights_of
from harvest_lib.spark.sink.report import BatchReport
from harvest_lib.spark.summaries import LoadSummary

_ALL_MONTHS = range(1, 13)


def load_months(job: LoadOptions, *, months: Sequence[int]) -> Iterator[BatchReport]:
    """Load the months in order, and yield the report of each month after its commit.

    Raises ConfigError, SourceError, OutboxTableError, BatchConflict or DatabaseError.
    """
    with opened(job) as flights:
        for batch in batches_of(flights.rows, months=months, file=flights.file, source=flights.source):
            yield flights.load(flights_of(flights.rows, batch), batch.id, batch.content)


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


def _arguments() -> Parser:
    parser = Parser(
        module="harvest_lib.spark.flights.by_month",
        description=__doc__,
        example="--dsn 'host=127.0.0.1 dbname=app user=app' --months 1-3 --json",
    )
    add_options(parser)
    parser.add_argument("--months", default="1-12", help="such as 1-12 (default), 3 or 1,2,6-8")
    parser.add_argument("--json", action="store_true", help="a JSON object per batch, then one of the whole run")
    return parser


def _run(arguments: Sequence[str] | None) -> None:
    options = _arguments().parse_args(arguments)
    reports = load_months(LoadOptions.of(options), months=parse_months(options.months))
    summary = follow(reports, BatchReport.as_json if options.json else _sentence)
    tell(summary.as_json() if options.json else _sentence_of_all(summary))


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


def _sentence_of_all(summary: LoadSummary) -> str:
    return (
        f"{summary.rows} flights in {summary.batches} batches: {summary.promoted} promoted, "
        f"{summary.already_promoted} already promoted, {summary.empty} empty, in {summary.seconds:.1f} s "
        f"(staging {summary.staging_rows_per_second} rows/s, promotion {summary.promotion_rows_per_second} rows/s)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return run(lambda: _run(arguments), interrupted=INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
