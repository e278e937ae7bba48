"""Time that the checker takes for a long history, as `harvest history` reads and checks it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from infra.chaos.checker import Promise
from infra.chaos.history.lines import to_line
from tests.benchmarks.report import Result, at_least, at_most
from tests.support.well_formed import Shape, history

if TYPE_CHECKING:
    from tests.benchmarks.backlog import Servers
    from tests.benchmarks.scenarios import Size

_EVENTS_PER_WRITE = 14
_SECONDS_PER_MILLION = 60.0


def check(servers: "Servers", size: "Size") -> Iterator[Result]:
    """Check ten times as many events as there are records; the floor parses their JSON and does nothing else."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "history.jsonl"
        for name, promise in {
            "history": Promise(delivery="at_least_once"),
            "history-transactional": Promise(delivery="transactional"),
        }.items():
            events = _write(file, promise, events=10 * size.records)
            floor = _parsed(file)
            began = time.monotonic()
            command = [sys.executable, "-m", "harvest_lib.cli", "history", str(file)]
            subprocess.run([*command, "--promise", promise.delivery], check=True, stdout=subprocess.DEVNULL)
            seconds = time.monotonic() - began
            yield at_least(name, events / seconds, "/s", floor=events / floor, ratio=floor / seconds)
            yield at_most(f"{name}-million", seconds * 1e6 / events, "s", target=_SECONDS_PER_MILLION)


def _write(file: Path, promise: Promise, *, events: int) -> int:
    shape = Shape(
        promise=promise,
        writes=events // _EVENTS_PER_WRITE,
        records_per_write=5,
        keys=10_000,
        partitions=8,
        page=500,
        trouble=0.002,
    )
    count = 0
    with file.open("w") as stream:
        for event in history(1, shape):
            stream.write(to_line(event))
            count += 1
    return count


def _parsed(file: Path) -> float:
    began = time.monotonic()
    with file.open("rb") as stream:
        for line in stream:
            json.loads(line)
    return time.monotonic() - began
