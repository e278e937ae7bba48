"""The reader that follows the topic all along, and what it will have to have read."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from harvest_lib.deadline import boot_seconds
from infra.chaos.reading import Reader
from infra.waiting import until

_CAUGHT_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A reader, and the events whose commit was `answered`, to which writers add."""

    reader: Reader
    answered: set[str]
    gone: set[str] = field(default_factory=set)
    """What went with a topic and was not read."""

    def catch_up(self) -> float:
        """Wait until something was read, and then all whose commit was answered by then; return that time, by the boot
        clock. Raises StackError."""
        next_step = "read the logs of the harvesters, beside the history"
        until(lambda: self.reader.has_read, _CAUGHT_UP_SECONDS, "nothing was read", next_step=next_step)
        now, due = boot_seconds(), set(self.answered)
        until(
            lambda: not due - self.reader.seen,
            _CAUGHT_UP_SECONDS,
            "what was answered was not read",
            evidence=lambda: f"{len(due - self.reader.seen)} of {len(due)} records",
            next_step=next_step,
        )
        return now

    def lose(self, events: Iterable[str]) -> tuple[str, ...]:
        """Return those of the events in a topic that went with it: they were not read, nor did they go with another."""
        found = set(events) - self.reader.seen - self.gone
        self.gone.update(found)
        return tuple(sorted(found))
