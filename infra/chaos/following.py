"""The reader that follows the topic during the whole run, and the events that it must read."""

from collections.abc import Iterable
from dataclasses import dataclass

from harvest_lib.clock import boot_seconds
from infra.chaos.reading import TopicReader
from infra.waiting import until

_CAUGHT_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A reader, and `answered`: the events whose commit Postgres confirmed. Writers add to this set."""

    reader: TopicReader
    answered: set[str]

    def catch_up(self) -> float:
        """Wait until the reader has read a record; note the time; then wait until it has read all events whose commit
        was confirmed before that time. Return the time, by the boot clock. Raises StackError."""
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
        """Return the part of `events` that the reader has not read, sorted."""
        return tuple(sorted(set(events) - self.reader.seen))
