"""Hold-off: the wait of a process before it leads a shard again, after a term that ended badly.

A term can end badly in two ways. The module is pure, except for its clock.

- Records that the process has sent may still arrive at the broker. Another process would lead after the session timeout
  at the earliest, so this process also waits for this time. Records that arrive later are too old for the topic's
  limit.
- The leader was fenced. If it and its successor both began again at once, they would fence each other endlessly. So the
  fenced leader holds off, unless its next term fences the previous leader and one of these conditions holds:
    - another leader has raised the epoch since then, and the term of this other leader is over;
    - this is the first or second time within a session timeout. A former leader that was frozen before its term began
      fences its successor when it resumes, and a second time if its client repeats the request.
"""

from collections.abc import Callable
from dataclasses import dataclass

from harvest_lib.clock import boot_seconds
from harvest_lib.leadership import Term

_INTERRUPTIONS = 2
"""Number of times that a fenced leader begins again at once. Without a limit, two leaders would fence each other
endlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HoldOff:
    until: float
    """End of the hold-off, in boot seconds."""
    epoch: int | None
    """The epoch of the term before the hold-off; None if the term had no epoch."""
    count: int
    """Number of successive hold-offs, up to and including this hold-off. Each began before the previous hold-off had
    ended."""


class HoldOffs:
    """The latest hold-off of each shard, in a process. `seconds` is the session timeout."""

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_seconds) -> None:
        self._seconds = seconds
        self._clock = clock
        self._latest: dict[int, _HoldOff] = {}

    def begin(self, shard: int, epoch: int | None) -> None:
        """Begin a hold-off of a shard now. `epoch` is the epoch of the term that has ended, None if it had no epoch."""
        now, before = self._clock(), self._latest.get(shard)
        count = 1 if before is None or now >= before.until else before.count + 1
        self._latest[shard] = _HoldOff(until=now + self._seconds, epoch=epoch, count=count)

    def is_over(self, term: Term) -> bool:
        """Return True if no hold-off prevents this term from beginning."""
        latest = self._latest.get(term.shard)
        if latest is None or self._clock() >= latest.until:
            return True
        before, now = latest.epoch, term.after_epoch
        was_followed = before is not None and now is not None and now > before
        return term.fences and (latest.count <= _INTERRUPTIONS or was_followed)
