"""A throughput meter: how many records, in all and since it was last read. No I/O; the clock is passed in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterStats:
    """One reading. Rates are records per second; `start` is the clock's value, in seconds, when counting began."""

    name: str
    start: float
    total_count: int
    total_rate: float
    interval_count: int
    interval_rate: float


class Meter:
    """Count records; `read` closes an interval and begins the next."""

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
        """Tell whether at least `interval_seconds` have passed since the last reading."""
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
