"""Compare on servers of our own, print a table, and write it below `compare` in the state folder."""

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from harvest_lib.errors import NothingChecked
from harvest_lib.local_stack.state import default_state
from infra.interruption import exit_code_of, interrupt_on_signals
from tests.benchmarks.compare.debezium import Debezium
from tests.benchmarks.compare.goharvest import Goharvest
from tests.benchmarks.compare.ours import BARRIER, EXACTLY_ONCE, Ours
from tests.benchmarks.compare.page import markdown, put
from tests.benchmarks.compare.peer import Peer
from tests.benchmarks.compare.plots import draw
from tests.benchmarks.compare.results import results
from tests.benchmarks.compare.rounds import KAFKA, POSTGRES, Comparison, Size, compare
from tests.benchmarks.report import Result, show, write

_WIDTH = 110
_PICTURE = "compare.png"


def run(size: Size, peers: Sequence[Peer], state: Path, console: Console, *, page: Path | None = None) -> list[Result]:
    """Compare, write and show. Raises NothingChecked when no relay could be measured."""
    folder, conditions = state / "compare", _conditions(size)
    others = [peer.name for peer in peers if not isinstance(peer, Ours)]

    def keep(done: Comparison) -> None:
        write(list(results(done.found)), folder / "report.json")
        kept = {"conditions": conditions, "left_out": done.left_out, "relays": _relays(done)}
        (folder / "conditions.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")

    with console.status("") as status:
        say = status.update if console.is_terminal else console.print
        done = compare(peers, size, state, alone=others, say=say, keep=keep)
    found = list(results(done.found))
    if not found:
        raise NothingChecked(
            "no relay was measured",
            evidence="; ".join(f"{what}: {why}" for what, why in done.left_out.items()),
            next_step="read why each was left out",
        )
    keep(done)
    titles = {peer.name: peer.title for peer in peers}
    draw(found, titles, folder / _PICTURE)
    if page:
        put(markdown(found, titles, done.built, done.left_out, conditions), page)
        shutil.copyfile(folder / _PICTURE, page.parent / "images" / _PICTURE)
    show(found, console)
    for what, why in done.left_out.items():
        console.print(f"left out: {what}: {why}", markup=False, soft_wrap=True)
    console.print(f"written to {folder / 'report.json'}", soft_wrap=True)
    return found


def main() -> int:
    """Read the command line, do all of it, and return the exit code."""
    usual = Size()
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    longer = usual.long_records
    parser.add_argument("--records", type=int, default=usual.records, help=f"per drain (default {usual.records:,})")
    parser.add_argument("--long-records", type=int, default=longer, help=f"of a long drain (default {longer:,})")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help=f"of drains (default {usual.rounds})")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help=f"of load (default {usual.seconds:.0f})")
    parser.add_argument("--kills", type=int, default=usual.kills, help=f"of each relay (default {usual.kills})")
    parser.add_argument("--page", type=Path, help="a page whose comparison is replaced")
    asked = parser.parse_args()
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=_WIDTH, highlight=False)
    size = Size(
        records=asked.records,
        long_records=asked.long_records,
        rounds=asked.rounds,
        seconds=asked.seconds,
        kills=asked.kills,
    )
    interrupt_on_signals()
    relays: list[Peer] = [EXACTLY_ONCE, BARRIER, Debezium(), Goharvest()]
    return exit_code_of(lambda: run(size, relays, default_state(), console, page=asked.page), console)


def _conditions(size: Size) -> list[str]:
    sizes = f"--records {size.records} --long-records {size.long_records}"
    asked = f"{sizes} --rounds {size.rounds} --seconds {size.seconds:g} --kills {size.kills}"
    return [
        f'`make compare COMPARE="{asked}"` on {os.cpu_count()} cores of {platform.machine()}, with Postgres '
        f"{POSTGRES}, Kafka {KAFKA} and Python {platform.python_version()}. Values have 200 bytes, topics 8 partitions."
    ]


def _relays(done: Comparison) -> dict[str, object]:
    return {name: {**asdict(done.built[name]), "measured": asdict(each)} for name, each in done.found.items()}


if __name__ == "__main__":
    sys.exit(main())
