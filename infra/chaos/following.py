"""The reader that follows the topic all along, and the events that it has to read."""

from collections.abc import Iterable
from dataclasses import dataclass

from harvest_lib.clock import boot_seconds
from infra.chaos.reading import TopicReader
from infra.waiting import until

_CAUGHT_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A reader, and the events whose commit was `answered`, to which writers add."""

    reader: TopicReader
    answered: set[str]

    def catch_up(self) -> float:
        """Wait until something was read, and then all whose commit was answered by then; return that time, by the boot
        clock. Raises StackError."""
        next_step = "read the logs of the harvesters, beside the history"
        until(lambda: self.reader.has_read, _CAUGHT_UP_SECONDS, "nothing was read", next_step=next_step)
        now, due = boot_seconds(), set(self.answered)
        until(
            lambda: not due - self.reader.seen,
            _CAUGHT_UP_SECONDS,
            "acknowledged records were not read",
            evidence=lambda: f"{len(due - self.reader.seen)} of {len(due)} records",
            next_step=next_step,
        )
        return now

    def unread(self, events: Iterable[str]) -> tuple[str, ...]:
        """Return the events that were not read."""
        return tuple(sorted(set(events) - self.reader.seen))
