"""Barriers: they admit records to a batch, or defer them to later ones. Pure, no I/O.

`KeyBarrier` is the key barrier in batches: at most one record of a key in a batch. `NoBarrier` has no barrier; it
defers only records for which there is no room.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from harvest_lib.batching.deferred_rows import DeferredRows
from harvest_lib.record import Row
from harvest_lib.record.rows import RowPage, keys_of

_MOST_DEFERRED = 20_000
_MOST_DEFERRED_BYTES = 16_000_000
"""Records, and bytes of them and of the pages that are kept for them; beyond either, nothing more is read until some
have gone."""

_Place = tuple[DeferredRows, int]
"""A row that waits: its page, and its place in it."""


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

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> Iterable[Sequence[Row]]:
        """Return the rows that may go now, at most `room`, of the deferred ones and then of `rows`, in one sequence or
        several; defer the rest. `first` is true if nothing has gone in this batch yet. Of pages, pages are returned."""
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
        self._waiting: list[_Place] = []  # may go, in order: there was no room
        self._queues: dict[str, deque[_Place]] = {}  # behind one that was sent or waits, in order
        self._blocked: dict[str, None] = {}  # keys of `_sent` that have a queue
        self._queued = 0
        self._bytes = 0

    def begin(self) -> None:
        self.isolated.clear()
        self.is_isolated = False
        self._sent.clear()
        self._waiting = []
        self._queues.clear()
        self._blocked.clear()
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

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> list[Sequence[Row]]:
        if isinstance(rows, RowPage) and not rows.summary.is_plain:
            rows = list(rows)
        page = DeferredRows(rows, keys := keys_of(rows))
        if not (self._waiting or self.isolated or self.is_isolated) and len(rows) <= room:
            return [self._take(page, self._first_of_keys(page, keys))]  # keys alone decide
        waiting, self._waiting = self._waiting, []
        room = 0 if self.is_isolated else room
        sent, isolated, queues = self._sent, self.isolated, self._queues
        admitted: dict[DeferredRows, list[int]] = {page: []}
        for some, behind in (waiting, ()), (_places_of(page), queues):  # one that waits is the head of its queue
            for each in some:
                key, record_id = each[0].keys[each[1]], each[0].ids[each[1]]
                if key in sent or key in behind:
                    self._defer(key, each)
                    continue
                is_alone = bool(isolated) and record_id in isolated
                if room and (not is_alone or first):
                    sent.add(key)
                    admitted.setdefault(each[0], []).append(each[1])
                    if key in queues:
                        self._blocked[key] = None
                    room, first = 0 if is_alone else room - 1, False
                    if is_alone:
                        isolated.discard(record_id)
                        self.is_isolated = True
                else:
                    self._wait(each)
                    room = 0
        return _joined([self._take(*each) for each in admitted.items()])

    def _first_of_keys(self, page: DeferredRows, keys: Sequence[str]) -> Sequence[int]:
        """Defer the rows of a page whose keys have been sent, or wait; return the places of the others."""
        sent, queues = self._sent, self._queues
        if len(new := {*keys}) == len(keys) and sent.isdisjoint(new) and queues.keys().isdisjoint(new):
            sent |= new
            return range(len(keys))
        admitted: list[int] = []
        for place, key in enumerate(keys):
            if key in sent or key in queues:
                self._defer(key, (page, place))
            else:
                sent.add(key)
                admitted.append(place)
        return admitted

    def pick(self, rows: Sequence[Row]) -> Sequence[Row]:
        page, waiting = DeferredRows(rows, keys_of(rows)), {each.keys[place] for each, place in self._waiting}
        picked: list[int] = []
        for each in _places_of(page):
            key = page.keys[each[1]]
            if key in self._sent or key in self._queues:
                self._defer(key, each)
            elif key in waiting:
                self._wait(each)
            else:
                self._sent.add(key)
                picked.append(each[1])
        return self._take(page, picked)

    def defers(self, row: Row) -> bool:
        key = row[2]
        waits = (page.keys[place] == key for page, place in self._waiting)
        return key in self._sent or key in self._queues or any(waits)

    @property
    def deferred_ids(self) -> list[int]:
        ids = [page.ids[place] for page, place in self._waiting]
        return ids + [page.ids[place] for queue in self._queues.values() for page, place in queue]

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

    def _wait(self, each: _Place) -> None:
        self._waiting.append(each)
        each[0].defer(each[1])

    def _defer(self, key: str, each: _Place) -> None:
        if (queue := self._queues.get(key)) is None:
            queue = self._queues[key] = deque()
        queue.append(each)
        each[0].defer(each[1])
        self._queued += 1
        if key in self._sent:
            self._blocked[key] = None

    def _take(self, page: DeferredRows, places: Sequence[int]) -> Sequence[Row]:
        before = page.bytes
        taken = page.take(places)
        self._bytes += page.bytes - before
        return taken


def _places_of(page: DeferredRows) -> list[_Place]:
    return [(page, place) for place in range(len(page))]


def _joined(found: Iterable[Sequence[Row]]) -> list[Sequence[Row]]:
    """Return pages as they are, and rows that were made as one sequence: each sequence is handed over by a call."""
    made: list[Row] = []
    pages: list[Sequence[Row]] = []
    for rows in found:
        if isinstance(rows, list):
            made += rows
        elif rows:
            pages.append(rows)
    return [made, *pages] if made else pages


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

    def admit(self, rows: Sequence[Row], room: int, *, first: bool) -> list[Sequence[Row]]:
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
