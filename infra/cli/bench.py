"""`harvest bench`: how fast it is on this machine, against floors measured in the same run."""

import importlib
from typing import Annotated

import typer

from harvest_lib.errors import HarvestError


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(help="This scenario only; may be repeated. Without it: all of the harvester."),
    ] = None,
    records: Annotated[int, typer.Option(min=1_000, help="Records per drain.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each kind, in turn.")] = 3,
) -> None:
    """Measure throughput, failover and idle cost on a local stack (source checkout only).

    Absolute figures are the machine's mood; ratios to a floor of the same run are not. Prints a table, and writes
    `.harvest/bench/report.json`. A target that was missed is shown and fails nothing.

    Two scenarios measure no part of the harvester, and run when they are named: `approaches` shows what other ways of
    reading an outbox lose, put out of order and hold up, on a workload made to tell them apart; `history` measures the
    checker of histories.

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
        message = f"unknown: {', '.join(unknown)}; there are {', '.join(scenarios)}"
        raise typer.BadParameter(message, param_hint="--only")
    run(only or (), records=records, rounds=rounds)
