"""Positions of a watcher's events that are not saved yet, because Airflow may still lose the events.

Airflow tells a watcher which events its database has. It also says so of events of a watcher that it has just removed,
because its DAG was paused or changed, and which it has dropped. It ends such a watcher within a few seconds. So a
position is saved only if the watcher still runs `SETTLE_SECONDS` later. Otherwise the next watcher repeats the events.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Generic, TypeVar

SETTLE_SECONDS = 10.0

_T = TypeVar("_T")


class Settling(Generic[_T]):
    """Positions in the order in which Airflow stored their events. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, _T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, position: _T) -> None:
        """Add a position whose events Airflow's database has, as it says."""
        self._waiting.append((time.monotonic(), position))

    def add_empty(self, position: _T) -> None:
        """Add a position that passes no event. It may be saved as soon as the position before it."""
        self._waiting.append((self._waiting[-1][0] if self._waiting else -math.inf, position))

    def settled(self) -> Sequence[_T]:
        """Return the positions that may be saved. They remain here until `remove`."""
        until = time.monotonic() - SETTLE_SECONDS
        return [position for _, position in takewhile(lambda each: each[0] <= until, self._waiting)]

    def remove(self, count: int) -> None:
        """Remove the first positions."""
        for _ in range(count):
            self._waiting.popleft()

    def clear(self) -> None:
        """Remove all positions, because their events are read again."""
        self._waiting.clear()
