"""Barriers: they filter the records of a batch, and defer the others to later batches. Pure, no I/O.

`NoBarrier` defers only records for which there is no room; `key_barrier.KeyBarrier` lets one record of a key go.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from harvest_lib.record import Row


class Barrier(Protocol):
    """Filters records before the next checkpoint is on disk, which `checkpoint_saved` reports. Each record with an id
    in `isolated` has a batch to itself."""

    isolated: set[int]
    is_isolated: bool
    """True if an isolated record goes in this batch; to be set to False when a batch begins."""
    is_crowded: bool
    """True if the last `filter` deferred more than a third of its rows: it pays to save a checkpoint before the next
    read."""

    def begin(self) -> None:
        """Forget everything: deferred records come again from the source."""
        ...

    def checkpoint_saved(self) -> None:
        """Note that a checkpoint on disk has passed all records sent so far."""
        ...

    def filter(self, rows: Sequence[Row], room: int, *, first: bool) -> Iterable[Sequence[Row]]:
        """Return the rows that may go now, at most `room`, in one or several sequences: deferred rows, then `rows`.
        Defer the rest. `first` is true if nothing has gone in this batch yet. Pages remain pages."""
        ...

    def filter_retried(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the retried or probed rows that may go now; defer the others, behind rows deferred already."""
        ...

    def defers(self, row: Row) -> bool:
        """Return True if `filter_retried` would defer a row."""
        ...

    @property
    def deferred_ids(self) -> list[int]:
        """Return the ids of deferred rows, in order of each key."""
        ...

    @property
    def deferred_count(self) -> int:
        """Return the number of deferred rows."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Return True if a deferred record may go now."""
        ...

    @property
    def is_blocked(self) -> bool:
        """Return True if a deferred record waits for the next checkpoint."""
        ...

    @property
    def is_full(self) -> bool:
        """Return True if the limit of deferred records is reached: nothing more should be read."""
        ...


class NoBarrier:
    """`Barrier` that lets every key pass."""

    is_blocked = is_crowded = False

    def __init__(self) -> None:
        self.isolated: set[int] = set()
        self._waiting: Sequence[Row] = ()
        self.is_isolated = False

    def begin(self) -> None:
        self.isolated.clear()
        self.is_isolated = False
        self._waiting = ()

    def checkpoint_saved(self) -> None:
        """See `Barrier`. Nothing waits for a checkpoint."""

    def filter(self, rows: Sequence[Row], room: int, *, first: bool) -> list[Sequence[Row]]:
        if self._waiting:
            rows = [*self._waiting, *rows] if rows else self._waiting
        if self.is_isolated:
            room = 0
        elif self.isolated:
            place = next((place for place, row in enumerate(rows) if row[0] in self.isolated), room)
            self.is_isolated = first and place == 0 < room
            room = min(room, place or int(first))
            if room and not place:
                self.isolated.discard(rows[0][0])
        if len(rows) <= room:
            self._waiting = ()
            return [rows]
        self._waiting = rows[room:]
        return [rows[:room]]

    def filter_retried(self, rows: Sequence[Row]) -> Sequence[Row]:
        before = {row[2] for row in self._waiting}
        if not before:
            return rows
        self._waiting = [*self._waiting, *(row for row in rows if row[2] in before)]
        return [row for row in rows if row[2] not in before]

    def defers(self, row: Row) -> bool:
        return any(each[2] == row[2] for each in self._waiting)

    @property
    def deferred_ids(self) -> list[int]:
        return [row[0] for row in self._waiting]

    @property
    def deferred_count(self) -> int:
        return len(self._waiting)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return bool(self._waiting)
