"""A wrong wall clock in a single process: Python's `time.time`, and the timestamps of the records that it sends.

libfaketime cannot be used. It fakes the clock that librdkafka reads, but not C11's `cnd_timedwait`, with which
librdkafka waits until a time of that clock. With a clock an hour ahead the client is blocked for an hour; with a clock
an hour behind it does not wait at all (seen with libfaketime 0.9.10 and librdkafka 2.16). The boot clock and the
monotonic clock stay correct.
"""

import time
from pathlib import Path

_LOOK_SECONDS = 0.05

_true_time = time.time


class OffClock:
    """The wall clock plus the seconds that a file contains; the correct wall clock if there is no file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._look_at = 0.0
        self._seconds = 0.0

    def off_seconds(self) -> float:
        """Return the seconds by which this clock is ahead of the correct time; negative if it is behind."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            try:
                self._seconds = float(self._file.read_text() or 0)
            except FileNotFoundError:
                self._seconds = 0.0
        return self._seconds

    def time(self) -> float:
        """Return the Unix time of this clock, in seconds."""
        return _true_time() + self.off_seconds()

    def set_off(self, seconds: float) -> None:
        """Set the offset of this clock in every process that reads the file."""
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._file)

    def set_right(self) -> None:
        """Remove the offset."""
        self._file.unlink(missing_ok=True)


def clock_of(history: Path) -> OffClock:
    """Return the clock of the process that writes this history."""
    return OffClock(history.with_suffix(".clock"))
