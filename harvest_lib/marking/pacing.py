"""When to ask the database: how soon after a mark that found nothing, and for how many records at a time. Pure.

The clock's readings are passed in, in seconds.
"""

from harvest_lib.config import Limits
from harvest_lib.marking.window import Window

IDLE_SECONDS = 0.07
"""Asked for nothing, the database is asked at most this often, unless `markBackoff` says less."""

_PURGE_DELAY_SECONDS = 0.005
"""Records that land one after the other are purged together, if they land within this time."""

_BACKOFF_GROWTH = 1.5


class Backoff:
    """The pace of one term's marks and purges. `mark_at` is when the next mark may be asked for."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._backoff = 0.0
        self._first_landed = self._last_landed = 0.0
        self._has_landed = False
        self.mark_at = 0.0

    def found(self, records: int, now: float) -> None:
        """Note what a mark found: the next comes at once, or after a pause that grows."""
        if records:
            self.hurry()
        else:
            slowest = max(self._limits.mark_backoff_seconds, IDLE_SECONDS)
            self._backoff = min(slowest, max(self._limits.mark_backoff_seconds, self._backoff * _BACKOFF_GROWTH))
            self.mark_at = now + self._backoff

    def hurry(self) -> None:
        """Let the next mark come at once."""
        self._backoff = self.mark_at = 0.0

    def landed(self, now: float) -> None:
        """Note that records have landed."""
        self._first_landed = self._first_landed if self._has_landed else now
        self._last_landed = now
        self._has_landed = True

    def purged(self) -> None:
        """Note that a purge was asked for of all that have landed."""
        self._has_landed = False

    def room(self, in_flight: Window, now: float) -> int:
        """Return how many records to mark now: none before it is worthwhile, or before the backoff is over."""
        wanted = min(self._limits.mark_query_records, in_flight.room)
        worthwhile = min(self._limits.mark_query_records, max(1, self._limits.max_in_flight_records // 2))
        return wanted if wanted >= worthwhile and now >= self.mark_at else 0

    def purge_is_worthwhile(self, landed: int, in_flight: Window, now: float) -> bool:
        """Tell whether to purge now: half of what is in flight has landed, or a batch, or no more has for a while."""
        enough = min(self._limits.mark_query_records, (in_flight.records + 1) // 2)
        waited = now - self._last_landed > _PURGE_DELAY_SECONDS or now - self._first_landed > IDLE_SECONDS
        return landed > 0 and (landed >= enough or waited)
