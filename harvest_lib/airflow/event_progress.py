"""The progress of tasks through the events of an asset. Pure, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

_LATE = timedelta(seconds=30)
"""Time between the making of an event and its commit, and between the clocks of two triggerers, that is allowed for."""


@dataclass(slots=True, kw_only=True)
class EventProgress:
    """The events that tasks have looked at: all until `until`, except perhaps some that were committed late. `recent`
    has the ids and times of those that the next task sees again. `begin` is the time from which this task looks."""

    until: datetime | None
    recent: dict[int, datetime]
    begin: datetime | None

    @classmethod
    def of_json(cls, stored: Any, mine: Sequence[datetime]) -> "EventProgress":
        """Return the progress that is stored. `mine` are the times of the events for which Airflow started this task's
        run: without progress the task begins there, and also if they are earlier than what the next task sees again."""
        first = min(mine, default=None)
        if not stored:
            return cls(until=None, recent={}, begin=first)
        until = datetime.fromisoformat(stored["until"])
        recent = {int(each): datetime.fromisoformat(at) for each, at in stored["recent"].items()}
        begin = min(until - _LATE, first or until)
        return cls(until=until, recent=recent, begin=begin)

    def note(self, event: int, at: datetime) -> int:
        """Note that an event was looked at. Return the number of events that were noted."""
        self.until = at if self.until is None else max(self.until, at)
        self.recent[event] = at
        return len(self.recent)

    def as_json(self) -> dict[str, Any]:
        """Return what the next task has to know."""
        assert self.until is not None  # noqa: S101 - an event was noted
        kept = {str(each): at.isoformat() for each, at in self.recent.items() if at >= self.until - _LATE}
        return {"until": self.until.isoformat(), "recent": kept}
