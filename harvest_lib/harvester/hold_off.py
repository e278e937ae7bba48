"""Hold-off: the wait before a process leads a shard again, after a term that ended badly. Pure, but for its clock.

- Its records on the wire may still arrive. Another process would lead after the session timeout at the earliest, and
  this one keeps to the same: records that arrive then are too old for the topic's limit.
- It was fenced. The leader that fenced it would be fenced in turn, and so without end, if both began again at once. So
  it holds off, except where its next term fences the previous leader:
    - if another leader has raised the epoch since: that was its successor, and is over;
    - twice in a session timeout: a former leader that was frozen before it began fences its successor as it thaws, and
      once more if its client repeats the request before it stops.
"""

from collections.abc import Callable
from dataclasses import dataclass

from harvest_lib.clock import boot_seconds
from harvest_lib.leadership import Term

_INTERRUPTIONS = 2
"""A fenced leader goes on so often: two that begin again and again would fence each other without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HoldOff:
    until: float
    """In boot seconds."""
    epoch: int | None
    """The epoch of the previous term."""
    count: int
    """Number of hold-offs, this one included, none of which had passed when the next began."""


class HoldOffs:
    """Those of a process, by shard. `seconds` is the session timeout."""

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_seconds) -> None:
        self._seconds = seconds
        self._clock = clock
        self._latest: dict[int, _HoldOff] = {}

    def begin(self, shard: int, epoch: int | None) -> None:
        """Hold off from now on, after a term that led under `epoch`; None if it had none."""
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
