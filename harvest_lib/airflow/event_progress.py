"""How far tasks have looked at the events of an asset. Pure, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

_LATE = timedelta(seconds=30)
"""Time between the making of an event and its commit, and between the clocks of two triggerers, that is allowed for."""


@dataclass(slots=True, kw_only=True)
class EventProgress:
    """What tasks have looked at: all events from `since` to `until`, except perhaps some that were committed late. Of
    these, `recent` has the ids and times of those that the next task sees again. `begin` is where this task begins."""

    since: datetime | None
    until: datetime | None
    recent: dict[int, datetime]
    begin: datetime | None

    @classmethod
    def of_json(cls, stored: Any, mine: Sequence[datetime]) -> "EventProgress":
        """Return what is stored. `mine` are the times of the events for which Airflow started this task's run: without
        progress the task begins there, and also if they are earlier than what the next task sees again."""
        first = min(mine, default=None)
        if not stored:
            return cls(since=first, until=None, recent={}, begin=first)
        since, until = (datetime.fromisoformat(stored[name]) for name in ("since", "until"))
        recent = {int(each): datetime.fromisoformat(at) for each, at in stored["recent"].items()}
        begin = until - _LATE
        if first is not None:
            begin, since = min(begin, first), min(since, first)
        return cls(since=since, until=until, recent=recent, begin=begin)

    def note(self, event: int, at: datetime) -> int:
        """Note that an event was looked at. Return the number of events that were noted."""
        self.until = at if self.until is None else max(self.until, at)
        self.recent[event] = at
        return len(self.recent)

    def as_json(self) -> dict[str, Any]:
        """Return what the next task has to know."""
        assert self.since is not None  # noqa: S101 - an event was noted
        assert self.until is not None  # noqa: S101 - as above
        kept = {str(each): at.isoformat() for each, at in self.recent.items() if at >= self.until - _LATE}
        return {"since": self.since.isoformat(), "until": self.until.isoformat(), "recent": kept}
