"""Definition of healthy. Decides, and does no I/O.

- *live*: the main loop runs. If not, only a new process helps.
- *ready*: the process leads, or could take over now.
- *progress*: the backlog is being reduced, by any process. This is observed from outside, whatever the process reports.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

DEFAULT_WITHIN_SECONDS = 60.0
"""Time that a backlog may go without being reduced, unless a request to `/progress` names another time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a health check, and the reason for it."""

    is_healthy: bool
    reason: str


class Health(Protocol):
    """Health checks of a process. Called by several threads; answers soon, whatever the servers do."""

    def live(self) -> Verdict:
        """Return a healthy verdict if the process's main loop runs."""
        ...

    def ready(self) -> Verdict:
        """Return a healthy verdict if it works, or could take over."""
        ...

    def progress(self, within_seconds: float) -> Verdict:
        """Return a healthy verdict if the backlog was reduced within a time."""
        ...


class ProgressWatch:
    """Derives from observations the time that a backlog was not reduced. Times are of a clock that is never set.

    Between two observations nothing is known: a backlog at its first observation has not stalled yet, unless the time
    without work (`quiet_seconds`) is known. Used by a single thread.
    """

    def __init__(self) -> None:
        self.stalled_seconds = 0.0
        """As of the last observation."""
        self._good_at: float | None = None
        self._mark: Hashable = None

    def observe(
        self, now: float, mark: Hashable, *, waits: bool, age_seconds: float | None, quiet_seconds: float = 0.0
    ) -> None:
        """Record an observation: `waits` if there is a backlog, the age of its oldest record, and a `mark` that changes
        with each finished record."""
        known = age_seconds if age_seconds else float("inf")  # 0: a writer's clock is ahead
        if not waits or (self._good_at is not None and mark != self._mark):
            self._good_at = now
        elif self._good_at is None:
            self._good_at = now - min(quiet_seconds, known)
        self._mark = mark
        self.stalled_seconds = min(now - self._good_at, known) if waits else 0.0
