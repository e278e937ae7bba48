"""A wall clock that is off, in a single process: Python's clock, and the clock of its records' timestamps.

libfaketime cannot do it: it fakes the clock that librdkafka reads, and not C11's `cnd_timedwait`, by which librdkafka
waits until a time of that clock. An hour ahead, the client is blocked for an hour; an hour behind, it does not wait at
all (seen with libfaketime 0.9.10 and librdkafka 2.16). The boot clock and the monotonic clock stay true.
"""

import time
from pathlib import Path

_LOOK_SECONDS = 0.05

_true_time = time.time


class OffClock:
    """The wall clock, off by the seconds in a file; true without the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._look_at = 0.0
        self._seconds = 0.0

    def off_seconds(self) -> float:
        """Return the offset from the true time; negative if it is behind."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            try:
                self._seconds = float(self._file.read_text() or 0)
            except FileNotFoundError:
                self._seconds = 0.0
        return self._seconds

    def time(self) -> float:
        """Return the time, as `time.time` does."""
        return _true_time() + self.off_seconds()

    def set_off(self, seconds: float) -> None:
        """Set its offset, in whichever process reads the file."""
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._file)

    def set_right(self) -> None:
        """Set it true."""
        self._file.unlink(missing_ok=True)


def clock_of(history: Path) -> OffClock:
    """Return the clock of the process that writes this history."""
    return OffClock(history.with_suffix(".clock"))
