"""When to ask the database: how soon after a mark that found nothing, and for how many records at a time. Pure.

The clock's readings are passed in, in seconds.
"""

from harvest_lib.config import Limits
from harvest_lib.marking.window import Window

IDLE_SECONDS = 0.07
"""With nothing to mark, the database is queried at most this often, unless `markBackoff` says less."""

_PURGE_DELAY_SECONDS = 0.005
"""Records acknowledged within this time of one another are purged together."""

_BACKOFF_GROWTH = 1.5


class Backoff:
    """When one term marks and purges. `mark_at` is when the next mark may be asked for."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._delay_seconds = 0.0
        self._first_acked = self._last_acked = 0.0
        self._has_acked = False
        self.mark_at = 0.0

    def found(self, records: int, now: float) -> None:
        """Note what a mark found: the next comes at once, or after a pause that grows."""
        if records:
            self.wake()
        else:
            slowest = max(self._limits.mark_backoff_seconds, IDLE_SECONDS)
            self._delay_seconds = min(
                slowest, max(self._limits.mark_backoff_seconds, self._delay_seconds * _BACKOFF_GROWTH)
            )
            self.mark_at = now + self._delay_seconds

    def wake(self) -> None:
        """Let the next mark come at once."""
        self._delay_seconds = self.mark_at = 0.0

    def acked(self, now: float) -> None:
        """Note that records were acknowledged."""
        self._first_acked = self._first_acked if self._has_acked else now
        self._last_acked = now
        self._has_acked = True

    def purged(self) -> None:
        """Note that a purge of all acknowledged records was submitted."""
        self._has_acked = False

    def room(self, in_flight: Window, now: float) -> int:
        """Return how many records to mark now: none before it is worthwhile, or before the backoff is over."""
        wanted = min(self._limits.mark_query_records, in_flight.room)
        worthwhile = min(self._limits.mark_query_records, max(1, self._limits.max_in_flight_records // 2))
        return wanted if wanted >= worthwhile and now >= self.mark_at else 0

    def purge_is_worthwhile(self, acked: int, in_flight: Window, now: float) -> bool:
        """Tell whether to purge now: half of what is in flight is acknowledged, or a full query, or no more came."""
        enough = min(self._limits.mark_query_records, (in_flight.records + 1) // 2)
        waited = now - self._last_acked > _PURGE_DELAY_SECONDS or now - self._first_acked > IDLE_SECONDS
        return acked > 0 and (acked >= enough or waited)
