"""CPU time and memory used by processes and all that they have started."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_HIGHEST = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds since they began, those of children that have ended too, and the highest resident bytes."""

    cpu_seconds: float
    highest_bytes: int


def cost_of(pids: Iterable[int]) -> Cost:
    """Add up what each process and its children have used."""
    cpu, highest = 0.0, 0
    for each in _trees(pids):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            times = each.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            found = _HIGHEST.search(Path(f"/proc/{each.pid}/status").read_text())
            highest += int(found[1]) * 1024 if found else 0
    return Cost(cpu_seconds=cpu, highest_bytes=highest)


def _trees(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            yield from (root, *root.children(recursive=True))
