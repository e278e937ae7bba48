"""Measure on a stack of our own, print a table, and write `bench/report.json` in the state folder."""

import argparse
from collections.abc import Sequence
from uuid import uuid4

from rich.console import Console

from harvest_lib.errors import NothingChecked
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import default_state
from tests.benchmarks.backlog import Servers
from tests.benchmarks.drain import drain, drain_batches
from tests.benchmarks.report import LeftOut, Result, show, write
from tests.benchmarks.scenarios import ONLY_WHEN_NAMED, SCENARIOS, Size

_WIDTH = 110
_WARM_UP_RECORDS = 100_000
"""A broker just started compiles its code meanwhile: the first drains are three times as slow."""


def run(names: Sequence[str], *, records: int, rounds: int) -> list[Result]:
    """Run the scenarios named, or if none is all that need not be named, and return what they found."""
    console, folder = Console(), default_state() / "bench"
    console = console if console.is_terminal else Console(width=_WIDTH)  # a file has room for all of the table
    tune_interpreter()  # as `harvest run` does
    results, left_out = list[Result](), list[LeftOut]()
    with console.status("starting Postgres and Kafka"), Stack(folder, fresh=True, parts=default_state()) as stack:
        topic = f"bench-{uuid4().hex[:8]}"  # outside servers may have one of an earlier run
        servers = Servers(dsn=stack.dsn, bootstrap_servers=stack.bootstrap_servers, topic=topic)
        servers.make_topic()
        for delivery in ("barrier", "pipelined") * 2:
            servers.fill(_WARM_UP_RECORDS)
            drain(servers, _WARM_UP_RECORDS, delivery=delivery)
        servers.make_native()
        servers.insert(_WARM_UP_RECORDS)
        for delivery in ("transactional", "pipelined") * 2:
            servers.forget()
            drain_batches(servers, _WARM_UP_RECORDS, delivery=delivery)
        for name in names or [name for name in SCENARIOS if name not in ONLY_WHEN_NAMED]:
            with console.status(name):
                found, missing = measured(name, servers, Size(records=records, rounds=rounds))
            left_out += missing
            results += found
            write(results, folder / "report.json")  # what there is, should a later one fail
    show(results, console)
    for each in left_out:
        console.print(f"left out: {each}", markup=False, soft_wrap=True)
    console.print(f"written to {folder / 'report.json'}")
    return results


def measured(name: str, servers: Servers, size: Size) -> tuple[list[Result], list[LeftOut]]:
    """Return what a scenario found, and what it left out. Raises NothingChecked if it measured nothing."""
    found = list(SCENARIOS[name](servers, size))
    results = [each for each in found if isinstance(each, Result)]
    left_out = [each for each in found if isinstance(each, LeftOut)]
    if not results:
        raise NothingChecked(
            f"the scenario {name} measured nothing",
            evidence="; ".join(map(str, left_out)) or "it returned no result",
            next_step="look at its entry in tests/benchmarks/scenarios.py",
        )
    return results, left_out


def main() -> None:
    """Read the command line and do all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    only = f"this scenario only; may be repeated; without it all run but {', '.join(ONLY_WHEN_NAMED)}"
    parser.add_argument("--only", action="append", choices=SCENARIOS, help=only)
    parser.add_argument("--records", type=int, default=100_000, help="records per drain (default 100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind, in turn (default 3)")
    arguments = parser.parse_args()
    run(arguments.only or (), records=arguments.records, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
