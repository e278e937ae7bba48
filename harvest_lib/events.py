"""Events for a harvester's event handler: changes of leadership, and readings of the throughput."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterStats:
    """A reading of a `Meter`. Rates are records per second. `start` is when the meter began to count, in seconds of its
    clock. The interval is the time since the previous reading."""

    name: str
    start: float
    total_count: int
    total_rate: float
    interval_count: int
    interval_rate: float


class Meter:
    """Counts records. `read` returns the counts and rates, and begins the next interval."""

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._start = now
        self._interval_start = now
        self._total = 0
        self._interval = 0

    def add(self, records: int) -> None:
        self._total += records
        self._interval += records

    @property
    def total(self) -> int:
        return self._total

    def due(self, now: float, interval_seconds: float) -> bool:
        """Return True if at least `interval_seconds` have passed since the last reading."""
        return now - self._interval_start >= interval_seconds

    def read(self, now: float) -> MeterStats:
        elapsed = now - self._start
        interval_elapsed = now - self._interval_start
        stats = MeterStats(
            name=self._name,
            start=self._start,
            total_count=self._total,
            total_rate=self._total / elapsed if elapsed > 0 else 0.0,
            interval_count=self._interval,
            interval_rate=self._interval / interval_elapsed if interval_elapsed > 0 else 0.0,
        )
        self._interval_start = now
        self._interval = 0
        return stats


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAcquired:
    """This process became the leader. `leader_id` identifies its term; it is random and never reused."""

    leader_id: UUID
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRefreshed:
    """This process still leads, under a new `leader_id`, because a delivery failed or the outcome of a mark is
    unknown."""

    leader_id: UUID
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRevoked:
    """This process lost leadership in an orderly way, by a rebalance or a stop."""

    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFenced:
    """This process gave up leadership by itself, because it could no longer prove that it leads."""

    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRead:
    """Throughput of the harvester. A delivery emits this event if `limits.minMetricsInterval` has passed since the last
    reading."""

    stats: MeterStats


Event = LeaderAcquired | LeaderRefreshed | LeaderRevoked | LeaderFenced | MeterRead
EventHandler = Callable[[Event], None]
