"""A deadline, shared by all the steps of a shutdown, and the clock of this package.

The clock is CLOCK_BOOTTIME: it advances while the machine sleeps and cannot be set, so a process that was frozen or
suspended knows that time has passed.
"""

import time


def boot_seconds() -> float:
    """Return seconds since boot, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_ms() -> int:
    """Return the time of the day in milliseconds since 1970, as in Kafka's timestamps."""
    return time.time_ns() // 1_000_000


class Deadline:
    """A point in time by which all of several steps have to be done."""

    def __init__(self, seconds: float) -> None:
        self._at = boot_seconds() + seconds

    @property
    def remaining_seconds(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self._at - boot_seconds())

    @property
    def passed(self) -> bool:
        return boot_seconds() >= self._at
