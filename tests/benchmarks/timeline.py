"""The harvester, and a line in a file for each step of its batches: when a page was read and with which ids, when it
was handed over, when the batch ended.

    python -m tests.benchmarks.timeline FILE run …      is `harvest run …`
"""

import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from harvest_lib.cli import main
from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.delivery.transactional import Transactional
from harvest_lib.source import SnapshotSource

LEGS = ("commit-to-read", "read-to-sent", "sent-to-acknowledged", "acknowledged-to-end", "end-to-reader")
"""Waits of a record, in turn: to be found, to be handed over, to be in Kafka, for the end of its transaction, and to
be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Seconds of `time.perf_counter` of a page, and its highest id."""

    last_id: int
    read: float
    sent: float
    acknowledged: float
    ended: float


def legs(pages: Sequence[Steps], record_id: int, written: float, came: float) -> list[float]:
    """Return the seconds of each of `LEGS` for a record, which is in one of the pages."""
    page = pages[bisect_left(pages, record_id, key=lambda each: each.last_id)]
    steps = [written, page.read, page.sent, page.acknowledged, page.ended, came]
    return [later - earlier for earlier, later in pairwise(steps)]


def read_steps(path: Path, delivery: str) -> list[Steps]:
    """Return the pages in their order."""
    end = "committed" if delivery == "transactional" else "flushed"
    found: list[Steps] = []
    pages: list[tuple[int, float]] = []
    times: dict[str, float] = {}
    for line in path.read_text().splitlines():
        what, last_id, at = line.split()
        times[what] = float(at)
        if what == "read":
            pages.append((int(last_id), float(at)))
        elif what == end:
            done = {"sent": times["sent"], "acknowledged": times["flushed"], "ended": times[end]} if pages else {}
            found += [Steps(last_id=each, read=read, **done) for each, read in pages]
            pages = []
    return found


def _traced(method: Callable[..., Any], what: str, into: TextIO) -> Callable[..., Any]:
    def traced(*arguments: Any) -> Any:
        result = method(*arguments)
        rows = result.rows if what == "read" and result is not None else ()
        if what != "read" or rows:
            into.write(f"{what} {rows[-1][0] if rows else 0} {time.perf_counter()}\n")
        return result

    return traced


def _trace(into: TextIO) -> None:
    """Wrap methods of the classes themselves; the ignores let mypy pass that."""
    SnapshotSource.read = _traced(SnapshotSource.read, "read", into)  # type: ignore[method-assign]
    BatchProducer.hand_over = _traced(BatchProducer.hand_over, "sent", into)  # type: ignore[method-assign]
    BatchProducer.flush = _traced(BatchProducer.flush, "flushed", into)  # type: ignore[method-assign]
    Transactional.commit = _traced(Transactional.commit, "committed", into)  # type: ignore[method-assign]


if __name__ == "__main__":
    with Path(sys.argv.pop(1)).open("w", buffering=1) as lines:
        _trace(lines)
        main()
