"""The clock of this package, and deadlines that several steps share.

The clock is CLOCK_BOOTTIME. It cannot be set, and it advances while the machine sleeps, so that a process that was
frozen or suspended can detect that time has passed.
"""

import time


def boot_seconds() -> float:
    """Return the seconds since the machine booted, including the time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_ms() -> int:
    """Return the Unix time in milliseconds, the unit of Kafka's timestamps."""
    return time.time_ns() // 1_000_000


class Deadline:
    """A point in time by which several steps together have to be complete, for example the steps of a shutdown."""

    def __init__(self, seconds: float) -> None:
        self._at = boot_seconds() + seconds

    @property
    def remaining_seconds(self) -> float:
        """Return the seconds until the deadline; 0 after it."""
        return max(0.0, self._at - boot_seconds())

    @property
    def passed(self) -> bool:
        return boot_seconds() >= self._at
