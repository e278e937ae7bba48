"""Fill the topics of a new subscription with records delivered before, by Spark; `harvest run` with that subscription
then goes on where this ends. The topics have to be there, empty. Run again, it goes on where it was.

Without -f the harvester's settings come from HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS. The database's user owns the
outbox.

Exit codes: 0 filled; 3 bad arguments; 4 a table is missing or is not what it should be; 5 database; 6 Kafka; 8 the
subscription or the replay is refused, or ended early; 11 archive; 130 interrupted.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from harvest_lib.errors import ConfigError
from harvest_lib.outbox.replays import OutboxReplay
from harvest_lib.spark.audit.__main__ import place_of
from harvest_lib.spark.command import Parser, run, tell
from harvest_lib.spark.replay.filling import ReplayPlace, ReplayReport, replay
from harvest_lib.spark.session import spark_session


def _arguments() -> Parser:
    parser = Parser(
        module="harvest_lib.spark.replay",
        description=__doc__,
        example="-f harvest.yaml --subscription orders-v2 --topic orders=orders.v2 --archive /srv/archive/orders",
    )
    parser.add_argument("-f", "--config", type=Path, help="the harvester's YAML (default: $HARVEST_CONFIG)")
    parser.add_argument("--dsn", help="libpq conninfo or URL, instead of the YAML's (default: $HARVEST_DSN)")
    parser.add_argument("--bootstrap-servers", help="instead of the YAML's (default: $HARVEST_BOOTSTRAP_SERVERS)")
    parser.add_argument("--outbox", help="the outbox table (default: the YAML's, else outbox)")
    parser.add_argument("--subscription", required=True, help="the new subscription")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        help="orders=orders.v2: the topic to replay, and its destination; may be repeated",
    )
    parser.add_argument("--archive", help="the URL of the outbox's archive (default: the outbox alone)")
    parser.add_argument(
        "--without-dropped",
        action="store_true",
        help="replay what is in the outbox, though earlier records were dropped",
    )
    parser.add_argument(
        "--progress-seconds", type=float, help="interval of the printed progress (default: a bar on a terminal)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _topics(given: Sequence[str]) -> dict[str, str]:
    pairs = [each.split("=") for each in given]
    if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004 - a pair
        raise ConfigError("a topic is not named as from=to", field="--topic", next_step="write orders=orders.v2")
    return {pair[0]: pair[1] for pair in pairs}


def _place(options: argparse.Namespace) -> ReplayPlace:
    # A producer's settings: another partitioner than the harvester's would put a key's records into two partitions.
    found = place_of(argparse.Namespace(**{**vars(options), "committed": None}), for_producer=True)
    return ReplayPlace(
        dsn=found["dsn"],
        kafka=found["kafka"],
        outbox=found["outbox"],
        archive=options.archive,
        without_dropped=options.without_dropped,
    )


def _run(arguments: Sequence[str] | None) -> int:
    options = _arguments().parse_args(arguments)
    topics = _topics(options.topic)
    place = _place(options)
    every_seconds = options.progress_seconds
    console = Console(stderr=every_seconds is None, soft_wrap=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="replay-", ignore_cleanup_errors=True) as folder:

        def begun(found: OutboxReplay) -> None:
            console.print(f"{found.subscription}: up to {found.snapshot}, in {found.parts} parts")

        with (
            Progress(
                console=console, transient=True, disable=every_seconds is not None or not console.is_terminal
            ) as bar,
            spark_session(jars=[], work_folder=Path(folder), app_name="harvest replay", is_long=True) as spark,
        ):
            task = bar.add_task(options.subscription, total=1.0)
            report = replay(
                spark,
                place,
                options.subscription,
                topics,
                begun=begun,
                progress=(lambda share: bar.update(task, completed=share))
                if every_seconds is None
                else _lines(options.subscription, every_seconds),
            )
    tell(json.dumps(asdict(report)) if options.json else _sentence(report))
    return 0


def _lines(subscription: str, every_seconds: float) -> Callable[[float], None]:
    """Return a function that prints the share that is done, but at most once in `every_seconds`."""
    next_at = 0.0

    def tell_share(share: float) -> None:
        nonlocal next_at
        if (now := time.monotonic()) >= next_at:
            next_at = now + every_seconds
            tell(f"{subscription}: about {share:.0%} done")

    return tell_share


def _sentence(report: ReplayReport) -> str:
    if report.already_filled:
        return f"{report.subscription} was filled before: `harvest run` with this subscription goes on from there"
    return (
        f"{report.subscription} is filled: {report.records:,} records in {report.seconds:,.1f} s; "
        "`harvest run` with this subscription goes on from there"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return run(lambda: _run(arguments), interrupted="run it again: it goes on where it was")


if __name__ == "__main__":
    sys.exit(main())
