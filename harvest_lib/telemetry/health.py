"""Definition of the health checks, without I/O.

- *live*: the main loop runs. If it does not run, only a new process helps.
- *ready*: the process leads, or could take over now.
- *progress*: the backlog is being reduced, by any process. It is derived from observations of the backlog, not from
  reports of a process about itself.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

DEFAULT_WITHIN_SECONDS = 60.0
"""Default of a request to `/progress`: there is progress if the backlog was reduced within this time."""


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

    At the first observation `quiet_seconds` is the time without progress so far. Without `quiet_seconds` that time is
    unknown, and the backlog counts as not stalled. Used by a single thread.
    """

    def __init__(self) -> None:
        self.stalled_seconds = 0.0
        """Time for which the backlog was not reduced, according to the last observation."""
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
