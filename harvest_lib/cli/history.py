"""`harvest audit history`: check the recorded events of a run against the guarantee of its delivery."""

import gc
import json
from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import AllowEmpty, Json, PromiseName
from harvest_lib.errors import NothingChecked


def history(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES", exists=True, dir_okay=False, readable=True, help="JSON lines, one file per process."
        ),
    ],
    promise: Annotated[PromiseName, typer.Option(help="The guarantee of the delivery.")],
    barrier: Annotated[
        bool,
        typer.Option("--barrier/--pipelined", help="With at_least_once: one record of a key in flight, or any number."),
    ] = True,
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N unexplained of each anomaly.")] = 5,
    allow_empty: AllowEmpty = False,
    as_json: Json = False,
) -> None:
    """Check a history: all writes, sends, acknowledgements, purges, reads and effects of all processes of a run.

    Anomalies have the names of Jepsen's Kafka workload. The page docs/history.md
    explains each, and what each guarantee allows. Duplicates that the guarantee
    allows count as explained.

    Exits with 0 if every anomaly is explained, 1 if one is not or a line could
    not be read, 10 if the files have no record, so that nothing was checked.

    Examples:

      harvest audit history run/*.jsonl --promise at_least_once

      harvest audit history run/*.jsonl --promise at_least_once --pipelined --json

      harvest audit history run/*.jsonl --promise transactional --show 1
    """
    from harvest_lib.audit.checker import Promise, check
    from harvest_lib.audit.history.reader import BadLine, read_history

    gc.freeze()
    gc.disable()  # the checker makes millions of objects and no cycles
    try:
        bad: list[BadLine] = []
        verdict = check(read_history(files, on_bad=bad.append), Promise(delivery=promise, barrier=barrier), keep=show)
    finally:
        gc.enable()
        gc.unfreeze()
    ok = verdict.ok and not bad and (verdict.records > 0 or allow_empty)
    if as_json:
        typer.echo(json.dumps({**verdict.to_json(), "ok": ok, "bad_lines": list(map(str, bad))}))
    else:
        actions.history.show_verdict(verdict, bad)
    if bad or not verdict.ok:
        raise typer.Exit(1)
    if not ok:
        raise NothingChecked(
            "the history has no record, so nothing was checked",
            evidence=f"{len(files)} files, {verdict.events:,} events, 0 records",
            next_step="name the files of writers and readers; if a history may be empty, use --allow-empty",
        )
