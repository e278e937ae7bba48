"""Barriers: they admit records to a batch, or defer them to later ones. Pure, no I/O.

`KeyBarrier` is the key barrier in batches: at most one record of a key in a batch. `NoBarrier` has no barrier; it
defers only records for which there is no room.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from harvest_lib.record import Row, row_bytes
from harvest_lib.record.rows import RowPage

_MOST_DEFERRED = 20_000
_MOST_DEFERRED_BYTES = 16_000_000
_SMALL_ROWS = 1_000
"""Records, and their bytes; beyond either, nothing more is read until they have gone. The bytes of a page of so many
rows are not counted, which would cost too much: they are few each, since the page has `PAGE_BYTES` at most."""

_FEW = 4
"""Of a page of which a smaller part than one in so many is deferred, rows are made one by one; else all at once, which
costs half as much for each."""


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
        `first` is true if nothing has gone in this batch yet. Of a page a page is returned, if none are deferred that
        may go."""
        ...

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return those of rows that were parked that may go now; defer the rest, behind rows deferred already."""
        ...

    def defers(self, row: Row) -> bool:
        """Return True if `pick` would defer a row."""
        ...

    @property
    def deferred_ids(self) -> list[int]:
        """Return the ids of deferred rows, those of each key in order."""
        ...

    @property
    def has_deferred(self) -> bool:
        """Return True if any row is deferred."""
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
    """`Barrier` that lets the first of each key go. Later ones queue by key, so that one of them costs no look at the
    others."""

    def __init__(self) -> None:
        self.isolated: set[int] = set()
        self.is_isolated = False
        self._sent: set[str] = set()  # keys that have a record since the last checkpoint
        self._waiting: list[Row] = []  # may go, in order: there was no room
        self._queues: dict[str, deque[Row]] = {}  # behind one that was sent or waits, in order
        self._blocked: dict[str, None] = {}  # keys of `_sent` that have a queue
        self._queued = 0
        self._sizes: dict[int, int] = {}  # bytes of deferred records, by id, but for small ones
        self._bytes = 0

    def begin(self) -> None:
        self.isolated.clear()
        self.is_isolated = False
        self._sent.clear()
        self._waiting = []
        self._queues.clear()
        self._blocked.clear()
        self._sizes.clear()
        self._queued = self._bytes = 0

    def checkpoint_saved(self) -> None:
        self._sent.clear()
        for key in self._blocked:
            queue = self._queues[key]
            self._waiting.append(queue.popleft())
            self._queued -= 1
            if not queue:
                del self._queues[key]
        self._blocked.clear()

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> Sequence[Row]:
        if isinstance(rows, RowPage) and self._takes_whole(rows, room):
            return self._admit_of(rows)
        waiting, self._waiting = self._waiting, []
        room = 0 if self.is_isolated else room
        sent, isolated, queues, blocked = self._sent, self.isolated, self._queues, self._blocked
        admitted: list[Row] = []
        for some in (waiting, rows):
            is_counted = some is rows and len(rows) < _SMALL_ROWS
            behind = queues if some is rows else ()  # one that waits is the head of its queue
            for row in some:
                key = row[2]
                if key in sent or key in behind:
                    self._defer(row, is_counted=is_counted)
                    continue
                is_alone = bool(isolated) and row[0] in isolated
                if len(admitted) < room and (not is_alone or (first and not admitted)):
                    sent.add(key)
                    admitted.append(row)
                    if key in queues:
                        blocked[key] = None
                    if is_alone:
                        isolated.discard(row[0])
                        self.is_isolated, room = True, 0
                else:
                    self._waiting.append(row)
                    if is_counted:
                        self._count(row)
                    room = 0
        if self._sizes:
            self._bytes -= sum(self._sizes.pop(row[0], 0) for row in admitted)
        return admitted

    def _takes_whole(self, page: RowPage, room: int) -> bool:
        """Return True if keys alone decide about the rows of a page."""
        is_open = not (self._waiting or self.isolated or self.is_isolated)
        return is_open and len(page) <= room and page.summary.is_plain

    def _admit_of(self, page: RowPage) -> RowPage:
        """Admit rows of a page, and make only those that are deferred."""
        keys, sent, queues = page.keys, self._sent, self._queues
        if len(new := {*keys}) == len(keys) and sent.isdisjoint(new) and queues.keys().isdisjoint(new):
            sent |= new
            return page
        admitted: list[int] = []
        deferred: list[int] = []
        for place, key in enumerate(keys):
            if key in sent or key in queues:
                deferred.append(place)
            else:
                sent.add(key)
                admitted.append(place)
        rows = page if len(deferred) < len(keys) // _FEW else list(page)
        for place in deferred:
            self._defer(rows[place], is_counted=len(keys) < _SMALL_ROWS)
        return page.pick(admitted)

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
        waiting = {row[2] for row in self._waiting}
        picked: list[Row] = []
        for row in rows:
            key = row[2]
            if key in self._sent or key in self._queues:
                self._defer(row, is_counted=True)
            elif key in waiting:
                self._waiting.append(row)
                self._count(row)
            else:
                self._sent.add(key)
                picked.append(row)
        return picked

    def defers(self, row: Row) -> bool:
        key = row[2]
        return key in self._sent or key in self._queues or any(each[2] == key for each in self._waiting)

    @property
    def deferred_ids(self) -> list[int]:
        return [row[0] for row in self._waiting] + [row[0] for queue in self._queues.values() for row in queue]

    @property
    def has_deferred(self) -> bool:
        return bool(self._waiting or self._queues)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) + self._queued > _MOST_DEFERRED or self._bytes > _MOST_DEFERRED_BYTES

    def _defer(self, row: Row, *, is_counted: bool) -> None:
        key = row[2]
        if (queue := self._queues.get(key)) is None:
            queue = self._queues[key] = deque()
        queue.append(row)
        self._queued += 1
        if key in self._sent:
            self._blocked[key] = None
        if is_counted:
            self._count(row)

    def _count(self, row: Row) -> None:
        self._sizes[row[0]] = size = row_bytes(row)
        self._bytes += size


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
            return rows
        self._waiting = rows[room:]
        return rows[:room]

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
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
    def has_deferred(self) -> bool:
        return bool(self._waiting)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return bool(self._waiting)
