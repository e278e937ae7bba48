"""The key barrier: at most one record of a key per checkpoint. Later records of the key are deferred. Pure, no I/O."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat

from harvest_lib.batching.deferred_rows import DeferredRows
from harvest_lib.record import Row
from harvest_lib.record.rows import RowPage, ids_of, keys_of

_MOST_DEFERRED = 20_000
_MOST_DEFERRED_BYTES = 16_000_000
"""Limits of the deferred records, in records and in bytes (of the records or their pages). Beyond either limit nothing
is read until deferred records are sent."""

_Deferred = tuple[DeferredRows, int, str, int]
"""A deferred row: its page, its index in the page, its key and its id."""


class KeyBarrier:
    """`Barrier` that lets the first record of each key pass. Later records wait in a queue per key, so that a row is
    not compared with all deferred rows."""

    def __init__(self) -> None:
        self.isolated: set[int] = set()
        self.is_isolated = self.is_crowded = False
        self._sent: set[str] = set()  # keys of records sent since the last checkpoint
        self._waiting: list[_Deferred] = []  # in order; sent when the batch has room
        self._queues: dict[str, deque[_Deferred]] = {}  # key -> rows behind a sent or waiting row, in order
        self._blocked: dict[str, None] = {}  # keys that are in `_sent` and have a queue
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
            if not queue:
                del self._queues[key]
        self._queued -= len(self._blocked)
        self._blocked.clear()

    def filter(self, rows: Sequence[Row], room: int, *, first: bool) -> list[Sequence[Row]]:
        if isinstance(rows, RowPage) and not rows.summary.is_plain:
            rows = list(rows)
        keys, ids = keys_of(rows), ids_of(rows)
        page = DeferredRows(rows)
        offered = zip(repeat(page), range(len(rows)), keys, ids, strict=False)
        waiting, self._waiting = self._waiting, []
        passing: dict[DeferredRows, list[int]] = {page: []}
        if self.is_isolated or self.isolated or len(waiting) + len(rows) > room:
            self._filter_some(waiting, offered, passing, 0 if self.is_isolated else room, first=first)
        else:  # keys alone decide
            self._filter_waiting(waiting, passing)
            passing[page] = self._filter_new(offered, keys)
        self.is_crowded = 3 * len(passing[page]) < 2 * len(rows)
        return _joined([self._take(*each) for each in passing.items()])

    def _filter_waiting(self, waiting: Iterable[_Deferred], passing: dict[DeferredRows, list[int]]) -> None:
        sent, queues, blocked = self._sent, self._queues, self._blocked
        for each in waiting:
            page, place, key, _ = each
            if key in sent:
                self._defer(each)
                continue
            sent.add(key)
            if key in queues:
                blocked[key] = None
            if (places := passing.get(page)) is None:
                passing[page] = [place]
            else:
                places.append(place)

    def _filter_new(self, offered: Iterable[_Deferred], keys: Sequence[str]) -> list[int]:
        sent, queues, blocked = self._sent, self._queues, self._blocked
        if len(new := {*keys}) == len(keys) and sent.isdisjoint(new) and queues.keys().isdisjoint(new):
            sent |= new
            return [*range(len(keys))]
        passing: list[int] = []
        for each in offered:
            key = each[2]
            if (queue := queues.get(key)) is not None:
                queue.append(each)
            elif key in sent:
                queues[key] = deque((each,))
                blocked[key] = None
            else:
                sent.add(key)
                passing.append(each[1])
        self._queued += len(keys) - len(passing)
        return passing

    def _filter_some(
        self,
        waiting: Iterable[_Deferred],
        offered: Iterable[_Deferred],
        passing: dict[DeferredRows, list[int]],
        room: int,
        *,
        first: bool,
    ) -> None:
        """Add the indexes of at most `room` rows to `passing`. An isolated record is sent alone."""
        for some, behind in (waiting, ()), (offered, self._queues):  # a waiting row is the head of its queue
            for each in some:
                page, place, key, record_id = each
                if key in self._sent or key in behind:
                    self._defer(each)
                    continue
                is_alone = record_id in self.isolated
                if not room or (is_alone and not first):
                    self._waiting.append(each)
                    room = 0
                    continue
                self._sent.add(key)
                passing.setdefault(page, []).append(place)
                if key in self._queues:
                    self._blocked[key] = None
                room, first = room - 1, False
                if is_alone:
                    self.isolated.discard(record_id)
                    self.is_isolated, room = True, 0

    def filter_retried(self, rows: Sequence[Row]) -> Sequence[Row]:
        page, before = DeferredRows(rows), {key for _, _, key, _ in self._waiting}
        passing: list[int] = []
        for each in zip(repeat(page), range(len(rows)), keys_of(rows), ids_of(rows), strict=False):
            key = each[2]
            if key in self._sent or key in self._queues:
                self._defer(each)
            elif key in before:
                self._waiting.append(each)
            else:
                self._sent.add(key)
                passing.append(each[1])
        return self._take(page, passing)

    def defers(self, row: Row) -> bool:
        key = row[2]
        return key in self._sent or key in self._queues or any(each == key for _, _, each, _ in self._waiting)

    @property
    def deferred_ids(self) -> list[int]:
        queues = self._queues.values()
        return [each[3] for each in self._waiting] + [each[3] for queue in queues for each in queue]

    @property
    def deferred_count(self) -> int:
        return len(self._waiting) + self._queued

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    @property
    def is_full(self) -> bool:
        return self.deferred_count > _MOST_DEFERRED or self._bytes > _MOST_DEFERRED_BYTES

    def _defer(self, each: _Deferred) -> None:
        key = each[2]
        self._queues.setdefault(key, deque()).append(each)
        self._queued += 1
        if key in self._sent:
            self._blocked[key] = None

    def _take(self, page: DeferredRows, places: Sequence[int]) -> Sequence[Row]:
        before = page.bytes
        taken = page.take(places)
        self._bytes += page.bytes - before
        return taken


def _joined(found: Iterable[Sequence[Row]]) -> list[Sequence[Row]]:
    """Return all lists joined into a single list, and then the pages, unchanged. Fewer sequences are better, because
    each sequence costs a call of the delivery."""
    made: list[Row] = []
    pages: list[Sequence[Row]] = []
    for rows in found:
        if isinstance(rows, list):
            made += rows
        elif rows:
            pages.append(rows)
    return [made, *pages] if made else pages
