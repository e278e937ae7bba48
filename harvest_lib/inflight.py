"""The window and the key barrier: which marked records may be sent now. Pure, no I/O.

Promises: at most `max_records` are in flight, and at most one per key, so whatever fails and is sent again can only
repeat (R0 R1 R1 R2), never step back (R0 R1 R2 R0). Rows of one key leave in the order in which they were offered.

A key is *claimed* while one of its rows is ready to be sent or in flight; its other rows wait behind that one.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from harvest_lib.record import Row


class InFlight:
    """Rows of one term, from mark to acknowledgement.

    `offer` rows as they are marked, send what `admit` returns, then `settle` each once nothing more can come of it:
    acknowledged *and purged*, or failed *and reset*. Used by one thread; reading the properties is safe from others.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self._claims: dict[str, int | None] = {}  # key -> id in flight, None while its row is only ready
        self._ready: deque[Row] = deque()
        self._waiting: dict[str, deque[Row]] = {}
        self._pending = 0
        self._in_flight = 0
        self._highest_id = 0

    @property
    def records(self) -> int:
        """Return how many records are in flight."""
        return self._in_flight

    @property
    def pending(self) -> int:
        """Return how many records are held back, by the window or by the barrier."""
        return self._pending

    @property
    def room(self) -> int:
        """Return how many more records may be marked before something lands."""
        return max(0, self._max_records - self._pending - self._in_flight)

    @property
    def keys(self) -> list[str]:
        """Return the keys that have a record in flight."""
        return [key for key, record_id in list(self._claims.items()) if record_id is not None]

    def offer(self, rows: Iterable[Row]) -> int:
        """Queue rows, ascending by id, and return how many were new.

        A row held already is left out: marks come back when another process took our rows and we took them again.
        """
        held: set[int] | None = None
        new = 0
        for row in rows:
            record_id, key = row[0], row[2]
            if record_id <= self._highest_id:
                held = self._held_ids() if held is None else held
                if record_id in held:
                    continue
            else:
                self._highest_id = record_id
            new += 1
            if key in self._claims:
                self._waiting.setdefault(key, deque()).append(row)
            else:
                self._claims[key] = None
                self._ready.append(row)
        self._pending += new
        return new

    def admit(self) -> deque[Row]:
        """Return the rows that may be sent now; from here on they count as in flight."""
        free = self._max_records - self._in_flight
        if free >= len(self._ready):
            admitted, self._ready = self._ready, deque()
        else:
            admitted = deque(self._ready.popleft() for _ in range(free))
        for row in admitted:
            self._claims[row[2]] = row[0]
        self._pending -= len(admitted)
        self._in_flight += len(admitted)
        return admitted

    def withdraw(self, rows: Sequence[Row]) -> None:
        """Take back admitted rows that were not sent after all; they are ready again, in the same order."""
        for row in rows:
            self._claims[row[2]] = None
        self._ready.extendleft(reversed(rows))
        self._pending += len(rows)
        self._in_flight -= len(rows)

    def settle(self, rows: Iterable[Row]) -> None:
        """Lower the barrier behind rows that have landed, and make the next of each key ready."""
        for row in rows:
            key = row[2]
            self._in_flight -= 1
            queue = self._waiting.get(key)
            if queue is None:
                del self._claims[key]
                continue
            self._claims[key] = None
            self._ready.append(queue.popleft())
            if not queue:
                del self._waiting[key]

    def drop_pending(self) -> list[int]:
        """Forget all rows that were not sent and return their ids; what is in flight stays claimed."""
        dropped = [row[0] for row in self._ready]
        dropped.extend(row[0] for queue in self._waiting.values() for row in queue)
        self._ready.clear()
        self._waiting.clear()
        self._claims = {key: record_id for key, record_id in self._claims.items() if record_id is not None}
        self._pending = 0
        return dropped

    def _held_ids(self) -> set[int]:
        held = {record_id for record_id in self._claims.values() if record_id is not None}
        held.update(row[0] for row in self._ready)
        held.update(row[0] for queue in self._waiting.values() for row in queue)
        return held
