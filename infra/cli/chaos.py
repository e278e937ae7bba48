"""`harvest chaos`: fault injection, and a check of the guarantees."""

import importlib
import json
import logging
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from harvest_lib.cli.options import BROKERS
from harvest_lib.cli.usage import Misuse, require_choice, require_duration
from harvest_lib.errors import FOUND_EXIT_CODE, HarvestError, NothingChecked

_LONGEST_FINDINGS = 10


class Modes(StrEnum):
    """A source and a delivery, or all combinations one after another."""

    ALL = "all"
    MARK_BARRIER = "mark/barrier"
    MARK_PIPELINED = "mark/pipelined"
    MARK_TRANSACTIONAL = "mark/transactional"
    MARK_SEQUENCED = "mark/sequenced"
    SNAPSHOT_BARRIER = "snapshot/barrier"
    SNAPSHOT_PIPELINED = "snapshot/pipelined"
    SNAPSHOT_TRANSACTIONAL = "snapshot/transactional"
    SNAPSHOT_SEQUENCED = "snapshot/sequenced"
    TRANSACTION_ID_BARRIER = "transaction_id/barrier"
    TRANSACTION_ID_PIPELINED = "transaction_id/pipelined"
    TRANSACTION_ID_TRANSACTIONAL = "transaction_id/transactional"
    TRANSACTION_ID_SEQUENCED = "transaction_id/sequenced"


class Election(StrEnum):
    """The election of the leader."""

    AUTO = "auto"
    NELI = "neli"
    POSTGRES = "postgres"


class Impl(StrEnum):
    """The implementation that hands records over to Kafka, or both one after another."""

    BOTH = "both"
    NATIVE = "native"
    PYTHON = "python"


def chaos(
    duration: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to inject faults, over all modes: 180s, 30m.")
    ] = "180s",
    faults: Annotated[
        str, typer.Option(metavar="NAMES", help="Only these faults, with commas between them. Default: all.")
    ] = "",
    seed: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Seed for order and duration of faults; each further run takes the next."
        ),
    ] = 0,
    mode: Annotated[
        Modes, typer.Option(metavar="SOURCE/DELIVERY", help="Mode: the source and the delivery.")
    ] = Modes.SNAPSHOT_TRANSACTIONAL,
    impl: Annotated[
        Impl,
        typer.Option(
            "--impl",
            metavar="both|native|python",
            help="What hands records over; with both, each mode has half of its time by each.",
        ),
    ] = Impl.BOTH,
    election: Annotated[
        Election,
        typer.Option(
            metavar="auto|neli|postgres",
            help="Leadership of the pool; auto is the choice of a configuration without it.",
        ),
    ] = Election.AUTO,
    brokers: Annotated[int, typer.Option(metavar="1|3", help="1 or 3 (min.insync.replicas 2).")] = 3,
    rate: Annotated[float, typer.Option(min=1, metavar="N", help="Records written per second.")] = 300.0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate servers, time and randomness instead, seed by seed.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --simulate: number of seeds, starting at --seed.")
    ] = 1_000,
    require_all: Annotated[
        bool, typer.Option("--require-all", envvar="CI", help="Fail if the machine lacks a requirement of a fault.")
    ] = False,
    histories: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for histories. Default: .harvest/chaos.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table of faults to this Markdown file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Run fault-injection tests (source checkout only).

    Starts its own Kafka cluster, Postgres and three harvesters, writes records
    and injects faults: it kills and freezes processes, cuts, holds and delays
    connections, and stops servers. Then all faults end, the topic is read once
    more, and the history of all processes is checked. With --simulate, the
    harvester's loops run against simulated servers; a seed decides everything, so
    that a run can be repeated.

    Exits with 13 if a record was lost or an anomaly was found that the delivery
    does not allow, with 10 if nothing was proved: in one of the runs no fault was
    injected, no record was committed, none was delivered, or none was handed over
    by the implementation that it was for.

    Examples:

      harvest chaos --duration 180s --seed 7 --json

      harvest chaos --duration 30m --mode all

      harvest chaos --mode snapshot/sequenced --impl native

      harvest chaos --faults leader-frozen,kafka-unheard --brokers 1 --mode mark/barrier

      harvest chaos --simulate --seeds 1000
    """
    if simulate:
        _simulate(seed, seeds, histories, as_json=as_json)
        return
    seconds = require_duration(duration, "--duration")
    require_choice(brokers, "--brokers", BROKERS)
    known, names = _part("infra.chaos.faults").FAULTS, [each for each in faults.split(",") if each]
    if unknown := sorted(set(names) - known.keys()):
        raise Misuse(f"--faults: unknown: {', '.join(unknown)}", next_step=f"choose of {', '.join(known)}")
    if unfit := [name for name in names if known[name].brokers > brokers]:
        raise Misuse(
            f"--faults: with 3 brokers only: {', '.join(unfit)}", next_step="add --brokers 3, or leave them out"
        )
    _require_all(names, brokers, require_all=require_all)
    report, make_mode = _part("infra.chaos.report"), _part("infra.chaos.system").SystemMode
    modes = [
        make_mode(source=source, delivery=delivery, hand_over=name, election=election.value)
        for source, delivery in (
            each.split("/") for each in Modes if each is not Modes.ALL and mode in {each, Modes.ALL}
        )
        for name in _implementations(impl)
    ]
    if idle := [name for name in names if not any(map(known[name].fits, modes))]:
        raise Misuse(
            f"--faults: not in this mode: {', '.join(idle)}", next_step="name another --mode, or leave them out"
        )
    # A run in which none of the faults can be injected would prove nothing.
    modes = [each for each in modes if any(known[name].fits(each) for name in names or known)]
    schedule = _part("infra.chaos.schedule").Schedule(
        {name: known[name] for name in names or known}, modes, brokers, seed
    )
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # writers' connections are cut on purpose
    outcomes: list[Any] = []
    for number, each in enumerate(modes):
        left_seconds = max(0.0, seconds - sum(outcome.fire_seconds for outcome in outcomes))
        plan = _part("infra.chaos.run").ChaosPlan(
            seed=seed + number, seconds=left_seconds / (len(modes) - number), mode=each, brokers=brokers, rate=rate
        )
        outcomes.append(_run_one(plan, schedule, histories, quiet=as_json))
    found = report.document(outcomes, schedule.left_out())
    if table is not None:
        report.put(outcomes, schedule.left_out(), table)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found, report.table(outcomes))
    if found["lost"] or found["unexplained"]:
        raise typer.Exit(FOUND_EXIT_CODE)
    if found["proved_nothing"]:
        raise NothingChecked(
            "the run proves nothing",
            evidence="; ".join(found["proved_nothing"]),
            next_step="give it a longer --duration and faults that this machine can make; read the history beside it",
        )


def _implementations(impl: Impl) -> list[str]:
    """Return the implementations to run, in this order. `both` means only Python if the native one is unavailable."""
    from harvest_lib.native import implementation

    if impl is Impl.PYTHON:
        return [impl]
    try:
        found = implementation().name
    except HarvestError as error:
        raise Misuse(f"HARVEST_IMPL: {error.cause}", evidence=error.evidence, next_step=error.next_step) from error
    if impl is Impl.NATIVE and found != "native":
        raise Misuse(
            "--impl native is not available here",
            evidence=implementation().reason,
            next_step="leave --impl out, or choose python",
        )
    return ["native", "python"] if found == "native" and impl is Impl.BOTH else [found]


def _require_all(names: list[str], brokers: int, *, require_all: bool) -> None:
    """Raise an error for named faults that this machine cannot inject. With `require_all` and no named faults, raise
    an error for any fault that would be left out."""
    missing = _part("infra.chaos.faults").missing(brokers)
    if asked := {name: missing[name] for name in names if name in missing}:
        said = "; ".join(f"{name}: {sentence}" for name, sentence in asked.items())
        raise Misuse(f"--faults: this machine cannot inject {said}", next_step="run `make machine`, or leave them out")
    if require_all and missing and not names:
        raise HarvestError(
            f"this machine lacks what {len(missing)} faults need",
            evidence="; ".join(f"{name}: {sentence}" for name, sentence in missing.items()),
            next_step="get it, or name the faults to inject in --faults",
        )


def _run_one(plan: Any, schedule: Any, histories: Path | None, *, quiet: bool) -> Any:
    from rich.console import Console

    mode = plan.mode
    run_name = f"{mode.source}-{mode.delivery}-{mode.hand_over}-{plan.seed}-{time.strftime('%H%M%S')}"
    state = _part("harvest_lib.local_stack.state")
    parts = state.default_state()
    folder = (histories or parts / "chaos") / run_name
    state.make_folder(folder)
    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{mode}[/], seed {plan.seed}, {plan.brokers} brokers, {plan.seconds:.0f} s; history in {folder}"
    )
    outcome = _part("infra.chaos.run").run(
        plan, schedule, folder.resolve(), parts, lambda said: console.print(f"  {said}")
    )
    console.print(f"  {outcome.committed} committed, {outcome.handed_over_natively} handed over natively")
    return outcome


def _show(found: dict[str, Any], table: Any) -> None:
    from rich.console import Console

    from harvest_lib.cli.tables import print_table

    console = Console(soft_wrap=True, highlight=False)
    print_table(table)
    console.print()
    for name in ("committed", "delivered", "lost", "duplicates", "unexplained", "faults", "seconds"):
        console.print(f"{name:<12} {found[name]:,}")
    console.print(f"{'natively':<12} {found['handed_over_natively']:,}")
    for fault, why in found["not_injected"].items():
        console.print(f"[yellow]not injected:[/] {fault}: {why}")
    for run in found["runs"]:
        for finding in run["findings"][:_LONGEST_FINDINGS]:
            console.print(f"[red]{finding['name']}[/] {finding['sentence']}")
        if run["findings"]:
            console.print(f"history: {run['history']}")


def _simulate(first_seed: int, seeds: int, histories: Path | None, *, as_json: bool) -> None:
    run = _part("tests.simulation.run").run
    began, failed = time.monotonic(), []
    for seed in range(first_seed, first_seed + seeds):
        outcome = run(seed)
        if outcome.broken:
            failed.append(_reported(outcome, histories))
            if not as_json:
                typer.echo(f"{outcome.text}\n")
    seconds = round(time.monotonic() - began, 1)
    if as_json:
        typer.echo(json.dumps({"seeds": seeds, "first_seed": first_seed, "seconds": seconds, "failed": failed}))
    else:
        typer.echo(f"{seeds} seeds from {first_seed}, {seconds} s: {len(failed)} failed")
    if failed:
        raise typer.Exit(FOUND_EXIT_CODE)


def _reported(outcome: Any, histories: Path | None) -> dict[str, Any]:
    report = {"plan": asdict(outcome.plan), "broken": outcome.broken}
    if histories is not None:
        histories.mkdir(parents=True, exist_ok=True)
        path = histories / f"seed-{outcome.plan.seed}.jsonl"
        outcome.history.write(path)
        report["history"] = str(path)
    return report


def _part(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HarvestError(
            "the fault-injection tests are not installed",
            evidence=str(error),
            next_step="run this in a clone of the repository, after `make setup`",
        ) from error
