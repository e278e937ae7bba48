"""The commit log: how fast batches of 200-byte messages are appended, and how long a log of 2 GB takes to be opened.

Appending is compared with a bare buffered writer of the same bytes, which never syncs: it has them packed, and writes
each with one call. The log numbers and packs them, checksums them, and syncs every second. An appended batch is in the
hands of the system when `append` returns, a written one when its buffer is flushed.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harvest_lib.local_stack.state import default_state
from harvest_lib.pipeline.commit_log import CommitLog, LogEntry, pack
from tests.benchmarks.backlog import VALUE_BYTES, Servers
from tests.benchmarks.report import Result, at_least, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_BATCH = 1_000
_KEYS = [b"public.flights", b"public.planes", b"public.airlines"]
_APPENDED_PER_SECOND = 200_000.0
_OPENED_BYTES = 2 * 10**9
_TAIL_BATCHES = 200
"""Batches that a killed process leaves unsynced: one second of the rate agreed on."""
_FOLD = 40
_NEVER = 1e9


def commit_log(servers: Servers, size: "Size") -> Iterator[Result]:
    """Append, and open what was appended."""
    batch = [(number, 1, _KEYS[number % 3], b"%0*d" % (VALUE_BYTES, number)) for number in range(_BATCH)]
    batches = max(1, _FOLD * size.records // _BATCH)
    rates, ratios, floors = [], [], []
    for _ in range(size.rounds):
        with tempfile.TemporaryDirectory(dir=default_state()) as folder:
            floor = _bare(Path(folder), batch, batches)
            rate = _appended(Path(folder), batch, batches)
        rates.append(rate)
        floors.append(floor)
        ratios.append(rate / floor)
    rate = median(rates)
    yield at_least("commit-log", rate, "/s", floor=median(floors), ratio=median(ratios), target=0.5)
    agreed = _APPENDED_PER_SECOND
    yield at_least("commit-log-rate", rate, "/s", floor=agreed, ratio=rate / agreed, target=1.0)
    closed, killed = [], []
    with tempfile.TemporaryDirectory(dir=default_state()) as folder:
        _fill(Path(folder), batch)
        for _ in range(size.rounds):
            closed.append(_opened(Path(folder), []))
            killed.append(_opened(Path(folder), batch))
    yield at_most("commit-log-open-2-GB", median(closed), "s", target=2.0)
    yield at_most("commit-log-open-killed", median(killed), "s", target=2.0)


def _bare(folder: Path, batch: list[tuple[int, int, bytes, bytes]], batches: int) -> float:
    packed = [pack([LogEntry(number, *entry)]) for number, entry in enumerate(batch)]
    with (folder / "bare").open("wb") as file:
        began = time.perf_counter()
        for _ in range(batches):
            for message in packed:
                file.write(message)
        file.flush()
        return batches * _BATCH / (time.perf_counter() - began)


def _appended(folder: Path, batch: list[tuple[int, int, bytes, bytes]], batches: int) -> float:
    with CommitLog(folder / "log") as log:
        began = time.perf_counter()
        for _ in range(batches):
            log.append(batch)
        return log.end / (time.perf_counter() - began)


def _fill(folder: Path, batch: list[tuple[int, int, bytes, bytes]]) -> None:
    batch_bytes = len(pack(LogEntry(0, *entry) for entry in batch))
    with CommitLog(folder) as log:
        for _ in range(_OPENED_BYTES // batch_bytes):
            log.append(batch)


def _opened(folder: Path, batch: list[tuple[int, int, bytes, bytes]]) -> float:
    """Return how long it takes until the newest of each key is known, after a kill if there is a batch to append."""
    if batch:
        log = CommitLog(folder, sync_seconds=_NEVER)
        for _ in range(_TAIL_BATCHES):
            log.append(batch)
        log._held.release()  # as the system does for who is killed
    began = time.perf_counter()
    log = CommitLog(folder)
    if len(log.newest()) != len(_KEYS):
        raise RuntimeError("keys are missing")
    seconds = time.perf_counter() - began
    log.close()
    return seconds
