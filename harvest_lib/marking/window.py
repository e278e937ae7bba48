"""The window and the key barrier: which marked records may be sent now. Pure, no I/O.

Both promise: at most `max_records` are in flight, and rows of one key leave in the order in which they were offered.
There is no room for more while what is held has `WINDOW_BYTES`.
`KeyBarrierWindow` also promises that at most one record of a key is in flight. A record that fails and is sent again
can then only repeat (`R0 R1 R1 R2`). A key never goes back: `R0 R1 R2 R0` cannot occur.

Under the barrier a key is *claimed* while one of its rows is ready to be sent or in flight; its other rows wait behind
that one.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

from harvest_lib.record import ID, Row, row_bytes
from harvest_lib.record.rows import RowPage, RowQueue, ids_of

_id = itemgetter(0)

WINDOW_BYTES = 16_000_000
"""Held by a window, in flight or not, when nothing more is marked; what is marked then comes on top of it."""
_SMALL_ROWS = 1_000
"""The bytes of so many rows that are offered at once are not counted, which would cost too much: they are few each,
since a page has `PAGE_BYTES` at most."""


class Window:
    """Rows of one term, from mark to acknowledgement, any number of a key at a time.

    `offer` rows as they are marked, send what `admit` returns, then `settle` each once nothing more can come of it:
    acknowledged *and purged*, parked, or failed *and reset*. Used by one thread; reading the properties is safe from
    others.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self._ready = RowQueue()
        self._in_flight: dict[int, Any] = {}  # id -> key, or the page that it is in
        self._highest_id = 0
        self._sizes: dict[int, int] = {}  # bytes of what is held, in flight or not, by id, but for what is small
        self._bytes = 0  # of all these

    @property
    def records(self) -> int:
        """Return how many records are in flight."""
        return len(self._in_flight)

    @property
    def pending(self) -> int:
        """Return how many records are held back, by the window or by the barrier."""
        return len(self._ready)

    @property
    def room(self) -> int:
        """Return how many more records may be marked before something lands."""
        return max(0, self._max_records - self.pending - self.records) if self._bytes < WINDOW_BYTES else 0

    @property
    def keys(self) -> list[str]:
        """Return the keys that have a record in flight."""
        in_flight = self._in_flight.copy()
        held = set(in_flight.values())
        pages = [each for each in held if isinstance(each, RowPage)]
        theirs = (each for page in pages for each in zip(page.ids, page.keys, strict=True))
        return [*held.difference(pages).union(key for record_id, key in theirs if record_id in in_flight)]

    def offer(self, rows: Sequence[Row]) -> int:
        """Queue rows, ascending by id, and return how many were new.

        A row held already is left out: marks come back when another process took our rows and we took them again.
        """
        if isinstance(rows, RowPage) and rows and rows[0][ID] > self._highest_id:
            self._highest_id = last = rows[-1][ID]
            self._sizes[last] = rows.summary.bytes  # which are held as long as its last row is
            self._bytes += rows.summary.bytes
            self._queue(rows)
            return len(rows)
        held: set[int] | None = None
        new: list[Row] = []
        for row in rows:
            record_id = row[0]
            if record_id <= self._highest_id:
                held = self._held_ids() if held is None else held
                if record_id in held:
                    continue
            else:
                self._highest_id = record_id
            new.append(row)
        if len(new) < _SMALL_ROWS:
            sizes = {row[0]: row_bytes(row) for row in new}
            self._sizes |= sizes
            self._bytes += sum(sizes.values())
        self._queue(new)
        return len(new)

    def admit(self) -> RowQueue:
        """Return the rows that may be sent now; from here on they count as in flight."""
        free = self._max_records - self.records
        if free >= len(self._ready):
            admitted, self._ready = self._ready, RowQueue()
        else:
            admitted = self._ready.take(free)
        in_flight = self._in_flight
        for row in admitted.single:
            in_flight[row[0]] = row[2]
        for page in admitted.pages:
            in_flight.update(dict.fromkeys(page.ids, page))
        return admitted

    def withdraw(self, rows: RowQueue) -> None:
        """Take back admitted rows that were not sent after all; they are ready again, in the same order."""
        for record_id in rows.ids:
            del self._in_flight[record_id]
        self._ready.give_back(rows)

    def settle(self, ids: Iterable[int]) -> None:
        """Forget records of which nothing more can come; under the barrier the next of each key becomes ready."""
        for record_id in ids:
            del self._in_flight[record_id]
            if self._sizes:
                self._bytes -= self._sizes.pop(record_id, 0)

    def take_back(self, keys: Collection[tuple[str, str]]) -> list[Row]:
        """Forget the rows of `keys`, each with its topic, that were not sent, and return them in order."""
        taken = [row for row in self._ready if row[1:3] in keys]
        self._forget(ids_of(taken))
        if taken:
            self._ready = RowQueue(row for row in self._ready if row[1:3] not in keys)
        return taken

    def drop_pending(self) -> list[int]:
        """Forget all rows that were not sent and return their ids."""
        dropped, self._ready = self._ready.ids, RowQueue()
        self._forget(dropped)
        return dropped

    def _forget(self, ids: Iterable[int]) -> None:
        """Hold the bytes of records no longer."""
        self._bytes -= sum(self._sizes.pop(record_id, 0) for record_id in ids)

    def _queue(self, rows: Sequence[Row]) -> None:
        self._ready.add(rows)

    def _held_ids(self) -> set[int]:
        return {*self._in_flight, *self._ready.ids}


class KeyBarrierWindow(Window):
    """A window in which at most one record of a key is in flight."""

    def __init__(self, max_records: int) -> None:
        super().__init__(max_records)
        self._claimed: set[str] = set()
        self._waiting: dict[str, deque[Row]] = {}
        self._waiting_rows = 0

    @property
    def pending(self) -> int:
        return len(self._ready) + self._waiting_rows

    def offer(self, rows: Sequence[Row]) -> int:
        return super().offer(list(rows))  # each has a way of its own

    def settle(self, ids: Iterable[int]) -> None:
        in_flight, claimed, waiting, ready = self._in_flight, self._claimed, self._waiting, self._ready.rows
        for record_id in ids:
            key = in_flight.pop(record_id)
            if self._sizes:
                self._bytes -= self._sizes.pop(record_id, 0)
            queue = waiting.get(key)
            if queue is None:
                claimed.discard(key)
                continue
            ready.append(queue.popleft())
            self._waiting_rows -= 1
            if not queue:
                del waiting[key]

    def take_back(self, keys: Collection[tuple[str, str]]) -> list[Row]:
        ready = super().take_back(keys)
        taken = list(ready)
        for key in {key for _, key in keys}.intersection(self._waiting):
            queue = self._waiting.pop(key)
            rest = deque(row for row in queue if row[1:3] not in keys)
            behind_them = [row for row in queue if row[1:3] in keys]
            taken += behind_them
            self._waiting_rows -= len(behind_them)
            self._forget(ids_of(behind_them))
            if rest:
                self._waiting[key] = rest
        for _, _, key, *_ in ready:  # each had claimed its key
            if behind := self._waiting.get(key):
                self._ready.rows.append(behind.popleft())
                self._waiting_rows -= 1
            else:
                self._claimed.discard(key)
            if not behind:
                self._waiting.pop(key, None)
        return sorted(taken, key=_id)

    def drop_pending(self) -> list[int]:
        dropped = super().drop_pending()
        for queue in self._waiting.values():
            behind = ids_of(queue)
            self._forget(behind)
            dropped += behind
        self._waiting.clear()
        self._waiting_rows = 0
        self._claimed = set(self._in_flight.values())
        return dropped

    def _queue(self, rows: Sequence[Row]) -> None:
        claimed, waiting, ready = self._claimed, self._waiting, self._ready.rows
        for row in rows:
            key = row[2]
            if key in claimed:
                waiting.setdefault(key, deque()).append(row)
                self._waiting_rows += 1
            else:
                claimed.add(key)
                ready.append(row)

    def _held_ids(self) -> set[int]:
        held = super()._held_ids()
        held.update(row[0] for queue in self._waiting.values() for row in queue)
        return held
