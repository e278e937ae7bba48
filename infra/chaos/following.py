"""The reader that follows the topic all along, and what it will have to have read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harvest_lib.deadline import boot_seconds
from infra.chaos.reading import Reader
from infra.waiting import until

_CAUGHT_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A reader, and the events whose commit was `answered`, to which writers add."""

    reader: Reader
    answered: set[str]

    def catch_up(self) -> float:
        """Wait until all is read that is answered now, and return the present time by the boot clock, as it is before
        that. Raises StackError."""
        since = boot_seconds()
        due = set(self.answered)
        _await(lambda: not due - self.reader.seen, "what was answered was not read")
        return since

    def unread(self, events: Iterable[str]) -> tuple[str, ...]:
        """Return those of the events that were not read."""
        return tuple(sorted(set(events) - self.reader.seen))

    def begin_anew(self) -> Callable[[], bool]:
        """Begin with another topic of the name, after `reader.leave`; return what tells whether something new came."""
        count = len(self.reader.seen)
        self.reader.begin()
        return lambda: len(self.reader.seen) > count


def _await(condition: Callable[[], bool], otherwise: str) -> None:
    until(condition, _CAUGHT_UP_SECONDS, otherwise, next_step="read the logs of the harvesters, beside the history")
