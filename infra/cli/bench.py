"""`harvest bench`: throughput on this machine, against baselines measured in the same run."""

import importlib
from typing import Annotated

import typer

from harvest_lib.cli.usage import Misuse
from harvest_lib.errors import HarvestError


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCENARIO", help="Run only this scenario; may be repeated. Default: all of the harvester's."
        ),
    ] = None,
    records: Annotated[int, typer.Option(min=1_000, metavar="N", help="Records per drain.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Measurements of each kind, alternating.")] = 3,
) -> None:
    """Measure throughput, failover and idle cost on a local stack (source checkout only).

    Absolute figures depend on the machine's load; ratios to a baseline of the
    same run do not. Prints a table, and writes `.harvest/bench/report.json`. A
    missed target is shown, but is no failure. Lines that need a C compiler are
    left out where there is none; the reason is printed.

    Two scenarios do not measure the harvester and run only by name. `approaches`
    shows how many records other ways of reading an outbox lose, reorder and
    delay, on a workload that separates them. `history` measures the checker of
    histories.

    Examples:

      harvest bench

      harvest bench --only drain-barrier --only one-key --rounds 5

      harvest bench --only approaches
    """
    try:
        scenarios = importlib.import_module("tests.benchmarks.scenarios").SCENARIOS
        run = importlib.import_module("tests.benchmarks.__main__").run
    except ImportError as error:
        raise HarvestError(
            "the benchmarks are not installed",
            evidence=str(error),
            next_step="run this in a clone of the repository, after `make setup`",
        ) from error
    unknown = sorted(set(only or ()) - scenarios.keys())
    if unknown:
        raise Misuse(f"--only: unknown: {', '.join(unknown)}", next_step=f"choose of {', '.join(scenarios)}")
    run(only or (), records=records, rounds=rounds)
