"""Definition of the health checks, without I/O.

- *live*: the main loop runs. If it does not, only a new process helps.
- *ready*: the process leads, or could take over now.
- *progress*: the backlog is being reduced, by any process. It is derived from observations of the backlog, not from
  reports of a process about itself.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

DEFAULT_WITHIN_SECONDS = 60.0
"""Maximum time without a reduction of the backlog that counts as progress, unless a request to `/progress` gives
another time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a health check, and the reason for it."""

    is_healthy: bool
    reason: str


class Health(Protocol):
    """Health checks of a process. Several threads may call them. They return quickly, even while Postgres or Kafka does
    not respond."""

    def live(self) -> Verdict:
        """Return a healthy verdict if the process's main loop runs."""
        ...

    def ready(self) -> Verdict:
        """Return a healthy verdict if the process works, or could take over."""
        ...

    def progress(self, within_seconds: float) -> Verdict:
        """Return a healthy verdict if the backlog was reduced within the last `within_seconds`, or is empty."""
        ...


class ProgressWatch:
    """Computes, from observations, for how long a backlog was not reduced. Times are readings of a monotonic clock.

    At the first observation a backlog counts as not stalled, because earlier times are unknown, unless `quiet_seconds`
    gives the time since the last progress. Used by a single thread.
    """

    def __init__(self) -> None:
        self.stalled_seconds = 0.0
        """Time that the backlog was not reduced, as of the last observation."""
        self._good_at: float | None = None
        self._mark: Hashable = None

    def observe(
        self, now: float, mark: Hashable, *, waits: bool, age_seconds: float | None, quiet_seconds: float = 0.0
    ) -> None:
        """Record an observation. `waits`: there is a backlog. `age_seconds`: the age of its oldest record, None if
        unknown. `mark`: any value that changes whenever a record was finished."""
        known = age_seconds if age_seconds else float("inf")  # an age of 0 means that a writer's clock is ahead
        if not waits or (self._good_at is not None and mark != self._mark):
            self._good_at = now
        elif self._good_at is None:
            self._good_at = now - min(quiet_seconds, known)
        self._mark = mark
        self.stalled_seconds = min(now - self._good_at, known) if waits else 0.0
