"""Barriers: they decide which records go in a batch, and defer the other records to later batches. Pure, no I/O.

`NoBarrier` defers only records for which the batch has no room. `key_barrier.KeyBarrier` also defers all but one record
of each key.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from harvest_lib.record import Row


class Barrier(Protocol):
    """Decides which records may be sent before the next checkpoint is on disk. The caller calls `checkpoint_saved` when
    that checkpoint is on disk. Each record with an id in `isolated` gets a batch of its own."""

    isolated: set[int]
    is_isolated: bool
    """True if this batch consists of one isolated record. The caller sets this to False when a batch begins."""
    is_crowded: bool
    """True if the last `filter` deferred more than a third of its rows. Then a checkpoint before the next read is worth
    its cost."""

    def begin(self) -> None:
        """Forget all records, because the source returns deferred records again."""
        ...

    def checkpoint_saved(self) -> None:
        """Note that the checkpoint on disk covers all records sent so far."""
        ...

    def filter(self, rows: Sequence[Row], room: int, *, first: bool) -> Iterable[Sequence[Row]]:
        """Return at most `room` rows to send now, as one or several sequences, and defer the other rows. Rows that were
        deferred earlier take precedence over `rows`. `first` is true if nothing was sent in this batch yet. Pages of
        rows are copied into lists only where necessary."""
        ...

    def filter_retried(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the retried or probed rows that may be sent now. Defer the other rows, behind rows that were deferred
        earlier."""
        ...

    def defers(self, row: Row) -> bool:
        """Return True if `filter_retried` would defer a row."""
        ...

    @property
    def deferred_ids(self) -> list[int]:
        """Return the ids of deferred rows, ordered within each key."""
        ...

    @property
    def deferred_count(self) -> int:
        """Return the number of deferred rows."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Return True if a deferred record may be sent now."""
        ...

    @property
    def is_blocked(self) -> bool:
        """Return True if a deferred record waits for the next checkpoint."""
        ...

    @property
    def is_full(self) -> bool:
        """Return True if nothing more should be read, because the limit of deferred records is reached."""
        ...


class NoBarrier:
    """`Barrier` that lets any number of records with the same key into a batch."""

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
        """Do nothing, because no record waits for a checkpoint."""

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
