"""Barriers: they admit records to a batch, or defer them to later ones. Pure, no I/O.

`KeyBarrier` is the key barrier in batches: at most one record of a key in a batch. `NoBarrier` has no barrier; it
defers only records for which there is no room.
"""

from collections.abc import Sequence
from typing import Protocol

from harvest_lib.record import Row, row_bytes

_MOST_DEFERRED = 20_000
_MOST_DEFERRED_BYTES = 16_000_000
_SMALL_ROWS = 1_000
"""Records, and their bytes; beyond either, nothing more is read until they have gone. The bytes of a page of so many
rows are not counted, which would cost too much: they are few each, since the page has `PAGE_BYTES` at most."""


class Barrier(Protocol):
    """Admits records before the next checkpoint is on disk, which `checkpoint_saved` reports. Records whose ids are in
    `isolated` have a batch to themselves."""

    isolated: set[int]
    is_isolated: bool
    """True if such a record goes in this batch; to be set to False when a batch begins."""

    def begin(self) -> None:
        """Forget everything: deferred records come again from the source."""
        ...

    def checkpoint_saved(self) -> None:
        """Note that a checkpoint is on disk which passed all that went."""
        ...

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> Sequence[Row]:
        """Return the rows that may go now, at most `room`, of the deferred ones and then of `rows`; defer the rest.
        `first` is true if nothing has gone in this batch yet."""
        ...

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return those of rows that were parked that may go now; defer the rest, behind rows deferred already."""
        ...

    @property
    def deferred_ids(self) -> list[int]:
        """Return the ids of deferred rows, in order."""
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
        """Return True if so many records are deferred that no more should be read."""
        ...


class KeyBarrier:
    """`Barrier` that lets the first of each key go."""

    def __init__(self) -> None:
        self.isolated: set[int] = set()
        self._sent: set[str] = set()  # keys that have a record since the last checkpoint
        self._waiting: list[Row] = []  # deferred, in order
        self._behind: list[Row] = []  # deferred in this batch
        self.is_isolated = False
        self._sizes: dict[int, int] = {}  # bytes of deferred records, by id, but for small ones

    def begin(self) -> None:
        self.isolated.clear()
        self.is_isolated = False
        self._sent.clear()
        self._waiting, self._behind = [], []
        self._sizes.clear()

    def checkpoint_saved(self) -> None:
        self._sent.clear()
        self._waiting, self._behind = self._waiting + self._behind, []

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> Sequence[Row]:
        waiting, self._waiting = self._waiting, []
        room = 0 if self.is_isolated else room
        sent, behind, isolated, sizes = self._sent, self._behind, self.isolated, self._sizes
        admitted: list[Row] = []
        for some in (waiting, rows):
            is_counted = some is rows and len(rows) < _SMALL_ROWS
            for row in some:
                key = row[2]
                if key in sent:
                    behind.append(row)
                    if is_counted:
                        sizes[row[0]] = row_bytes(row)
                elif len(admitted) < room and not (isolated and row[0] in isolated):
                    sent.add(key)
                    admitted.append(row)
                    if sizes:
                        sizes.pop(row[0], None)
                elif len(admitted) < room and first and not admitted:
                    sent.add(key)
                    isolated.discard(row[0])
                    admitted.append(row)
                    if sizes:
                        sizes.pop(row[0], None)
                    self.is_isolated, room = True, 0
                else:
                    self._waiting.append(row)
                    if is_counted:
                        sizes[row[0]] = row_bytes(row)
                    room = 0
        return admitted

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
        waiting = {row[2] for row in self._waiting}
        picked: list[Row] = []
        for row in rows:
            key = row[2]
            if key not in waiting and key not in self._sent:
                self._sent.add(key)
                picked.append(row)
            else:
                (self._waiting if key in waiting else self._behind).append(row)
                self._sizes[row[0]] = row_bytes(row)
        return picked

    @property
    def deferred_ids(self) -> list[int]:
        return [row[0] for row in (*self._waiting, *self._behind)]

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_blocked(self) -> bool:
        return bool(self._behind)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) + len(self._behind) > _MOST_DEFERRED or (
            bool(self._sizes) and sum(self._sizes.values()) > _MOST_DEFERRED_BYTES
        )


class NoBarrier:
    """`Barrier` that lets every key pass."""

    is_blocked = False

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

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> Sequence[Row]:
        if self._waiting:
            rows = [*self._waiting, *rows] if rows else self._waiting
        if self.isolated:
            place = next((place for place, row in enumerate(rows) if row[0] in self.isolated), room)
            self.is_isolated = first and place == 0 < room
            room = min(room, place or int(first))
            if room and not place:
                self.isolated.discard(rows[0][0])
        if len(rows) <= room:
            self._waiting = ()
            return rows
        self._waiting = rows[room:]
        return rows[:room]

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
        before = {row[2] for row in self._waiting}
        if not before:
            return rows
        self._waiting = [*self._waiting, *(row for row in rows if row[2] in before)]
        return [row for row in rows if row[2] not in before]

    @property
    def deferred_ids(self) -> list[int]:
        return [row[0] for row in self._waiting]

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return bool(self._waiting)
