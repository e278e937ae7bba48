"""The errors of a watcher: told when they begin, and once a minute while they last; and the pause before a retry."""

import logging
import time

from harvest_lib.airflow.outcomes import PERMANENT
from harvest_lib.errors import HarvestError

_log = logging.getLogger(__name__)

_TOLD_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_PERMANENT_PAUSE_SECONDS = 60.0


class WatcherTroubles:
    """The current error of the watcher that the text `whose` names."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._last: tuple[str, float] | None = None  # the cause of the error that was told, and when
        self._pause = _FIRST_PAUSE_SECONDS

    def tell(self, error: Exception) -> float:
        """Log an error, unless the same was logged within a minute. Return the seconds until the next try: a minute for
        an error that another try would find again, else up to half a minute."""
        cause = error.cause if isinstance(error, HarvestError) else repr(error)
        now = time.monotonic()
        if self._last is None or self._last[0] != cause or now - self._last[1] >= _TOLD_SECONDS:
            self._last = cause, now
            known = isinstance(error, HarvestError)
            _log.error("%s waits: %s", self._whose, error, exc_info=None if known else error)
        if isinstance(error, PERMANENT):
            return _PERMANENT_PAUSE_SECONDS
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return pause

    def end(self) -> None:
        """Note that the watcher works. Log that if an error was told before."""
        if self._last is not None:
            _log.info("%s goes on", self._whose)
        self._last, self._pause = None, _FIRST_PAUSE_SECONDS
