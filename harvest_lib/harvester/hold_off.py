"""Hold-off: the wait before a process leads a shard again, after a term that ended badly. Pure, except for its clock.

- Its records on the wire may still arrive. Another process would lead after the session timeout at the earliest, and
  this process waits as long: records that arrive then are too old for the topic's limit.
- It was fenced. If the fenced leader and its successor both began again at once, they would fence each other without
  end. So the fenced leader holds off, unless its next term fences the previous leader, and
    - another leader has raised the epoch since: that successor's term is over;
    - or this is the first or second time in a session timeout: a former leader that was frozen before it began fences
      its successor as it thaws, and once more if its client repeats the request before it stops.
"""

from collections.abc import Callable
from dataclasses import dataclass

from harvest_lib.clock import boot_seconds
from harvest_lib.leadership import Term

_INTERRUPTIONS = 2
"""Times that a fenced leader begins again at once: without a limit two leaders would fence each other without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HoldOff:
    until: float
    """In boot seconds."""
    epoch: int | None
    """The epoch of the previous term."""
    count: int
    """Number of hold-offs up to this, each begun before its predecessor had passed."""


class HoldOffs:
    """The hold-offs of a process, by shard. `seconds` is the session timeout."""

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_seconds) -> None:
        self._seconds = seconds
        self._clock = clock
        self._latest: dict[int, _HoldOff] = {}

    def begin(self, shard: int, epoch: int | None) -> None:
        """Hold off from now on, after a term that led under `epoch`; None for a term without an epoch."""
        now, before = self._clock(), self._latest.get(shard)
        count = 1 if before is None or now >= before.until else before.count + 1
        self._latest[shard] = _HoldOff(until=now + self._seconds, epoch=epoch, count=count)

    def is_over(self, term: Term) -> bool:
        """Return True if this term may begin."""
        latest = self._latest.get(term.shard)
        if latest is None or self._clock() >= latest.until:
            return True
        before, now = latest.epoch, term.after_epoch
        was_followed = before is not None and now is not None and now > before
        return term.fences and (latest.count <= _INTERRUPTIONS or was_followed)
