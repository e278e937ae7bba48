"""Which records a subscription by laps has set aside, and which it has to: those that can never be sent, and what waits
behind them. The policies are those of `harvest_lib.outbox.parking_rules`; the records stay in the outbox.

Promises
- What is set aside is on disk, under the epoch, before anything is committed that passes it.
- Under `hold_key` nothing of a key is sent to a topic that comes after a record of both that is set aside.
- A row is passed over as parked only if it is the row that was parked: another one may have its id.
- What people want sent again goes by id, each key's from its lowest on, and is forgotten only once it is in Kafka.
- Rows pass without a look at each while nothing is set aside and none is refused.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from harvest_lib.batching.parked_ids import Entry
from harvest_lib.config.limits import Policy
from harvest_lib.errors import RecordError
from harvest_lib.outbox.parking_rules import HeldKey
from harvest_lib.record import Row
from harvest_lib.source import Position

_log = logging.getLogger(__name__)

_SHOWN = 10
_MOST_FOUND = 10_000
"""Records that are to be set aside, in memory until they are written."""


class Places(Protocol):
    """Where it is written down what is set aside. All calls raise DatabaseUnavailable."""

    def load(self, *, each: bool) -> list[tuple[HeldKey, int]]:
        """Return keys with their topics, and ids: of each the lowest, or `each` there is."""
        ...

    def add(self, entries: Sequence[Entry], /) -> bool:
        """Set records aside, durably; False if we were deposed."""
        ...

    def matching(self, ids: Sequence[int], /) -> set[int]:
        """Return those of the ids that are listed, and of the rows that have them now."""
        ...

    def moved(self, known: Sequence[tuple[HeldKey, int]], /) -> list[HeldKey]:
        """Return the keys of those of the parked records that somebody has dropped, or wants sent."""
        ...

    def due(self, keys: Sequence[HeldKey], limit: int, *, keep_order: bool) -> list[int]:
        """Return what of the keys may be sent, ascending: what no record stands before that stays parked."""
        ...

    def release(self, ids: Sequence[int], /) -> bool:
        """Forget records; False if we were deposed."""
        ...


class Knowledge(Protocol):
    """What is known of topics: `harvest_lib.delivery.Topics`."""

    def refused(self, rows: Sequence[Row], largest: int | None = None, /) -> Mapping[int, str]:
        """Return those of the rows that can never be sent, id and reason. `largest` is the length of the longest value;
        without it each is measured, headers too."""
        ...

    def oversized(self, rows: Sequence[Row], /, largest: int) -> set[int]:
        """Return the ids of those that may be refused with all that travel with them."""
        ...

    def forget(self) -> None:
        """Ask again."""
        ...

    def blame(self, topic: str, reason: str, /) -> None:
        """Note that a record for a topic was not taken, for a reason that may pass."""
        ...


class BatchParking:
    """What one term has set aside. `begin` it whenever the source is opened."""

    is_stale = False
    """Whether what was read has to be read again; never here."""

    def __init__(
        self,
        policy: Policy,
        topics: Knowledge,
        places: Places,
        otherwise: str = "`parking: hold_key` would set it aside",
    ) -> None:
        self._policy = policy
        self._topics = topics
        self._places = places
        self._otherwise = otherwise
        self._holds = policy != "skip"
        self._first: dict[HeldKey, int] = {}  # the lowest id that is set aside of each key in its topic
        self._ids: dict[int, HeldKey] = {}  # all of them with their keys, where no key is held
        self._found: list[Entry] = []  # not written yet
        self.lowest: int | None = None
        """The lowest id that is set aside, or is to be."""

    @property
    def is_full(self) -> bool:
        """Tell whether so much is to be written that nothing more should be read before."""
        return len(self._found) >= _MOST_FOUND

    def begin(self, retried: Sequence[int] = ()) -> bool:
        """Learn what is set aside, but for what is in Kafka since; what was found and not written comes again. False
        if we were deposed."""
        self._found.clear()
        if retried:
            return self.release(retried)
        self._learn()
        return True

    def sieve(self, rows: Sequence[Row], largest: int | None = None) -> Sequence[Row]:
        """Return the rows that may be sent. The others are set aside, or will be by `write`. `largest` is the length of
        the longest value; without it each record is measured. Raises RecordError under `stop`."""
        refusals = self._topics.refused(rows, largest)
        if not refusals and (not self._first or self._first.keys().isdisjoint([row[1:3] for row in rows])):
            return rows
        parked = self._parked(rows)
        good: list[Row] = []
        for row in rows:
            record_id = row[0]
            first = self._first.get(row[1:3])
            if record_id in parked:
                continue
            if self._holds and first is not None and record_id > first:
                self._found.append(Entry(record_id, row[1], row[2], f"held behind {first}", held=True))
            elif record_id in refusals:
                self._refuse(row, refusals[record_id])
            else:
                good.append(row)
        return good

    def suspects(self, rows: Sequence[Row], largest: int) -> set[int]:
        """Return the ids of those that should travel alone, given the length of the longest value."""
        return self._topics.oversized(rows, largest)

    def passed(self, position: Position) -> Position:
        """Return the position after a page whose rows were sieved."""
        return position

    def blame(self, row: Row, reason: str) -> None:
        """Note that a record that was sent alone was not taken, for a reason that may pass."""
        self._topics.blame(row[1], reason)

    def park(self, row: Row, reason: str) -> bool:
        """Set a record aside at once that was refused when it was sent; False if we were deposed. Raises RecordError
        under `stop`."""
        self._refuse(row, reason)
        return self.write()

    def write(self) -> bool:
        """Write down what is to be set aside; False if we were deposed."""
        found, self._found = list({entry.id: entry for entry in self._found}.values()), []
        if not found:
            return True
        if not self._places.add(found):
            return False
        parked = [entry for entry in found if not entry.held]
        if parked:
            reasons = sorted({entry.reason for entry in parked})[:_SHOWN]
            ids = [entry.id for entry in parked[:_SHOWN]]
            _log.warning("records_parked", extra={"ids": ids, "count": len(parked), "reasons": reasons})
        if held := len(found) - len(parked):
            _log.info("records_held", extra={"count": held})
        return True

    # -- what is sent again

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is set aside."""
        return self.lowest is None

    def due(self, limit: int) -> list[int]:
        """Return the ids of what people want sent, or have made way for, `limit` at most."""
        known = [(key, each) for each, key in self._ids.items()] if self._ids else list(self._first.items())
        keys = self._places.moved(known)
        if not keys:
            return []
        self._learn()
        return self._places.due(keys, limit, keep_order=self._holds)

    def ask_anew(self) -> None:
        """Forget what is known of topics: it is why records were set aside."""
        self._topics.forget()

    def sendable(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return those of what is due that may be sent; `write` will park the others once more, their keys still
        held. Raises RecordError under `stop`."""
        refusals = self._topics.refused(rows)
        if not refusals:
            return rows
        good: list[Row] = []
        held: set[HeldKey] = set()
        for row in rows:
            if row[1:3] in held:
                continue
            if row[0] in refusals:
                self._refuse(row, refusals[row[0]])
                held.update([row[1:3]] if self._holds else [])
            else:
                good.append(row)
        return good

    def release(self, ids: Sequence[int]) -> bool:
        """Forget records: they are in Kafka, or nowhere any more. False if we were deposed."""
        if not self._places.release(ids):
            return False
        self._learn()
        return True

    def _parked(self, rows: Sequence[Row]) -> set[int]:
        """Return the ids of the rows that are parked. If another row has the id of a parked one, load anew."""
        listed = [row[0] for row in rows if row[0] in self._ids or self._first.get(row[1:3]) == row[0]]
        parked = self._places.matching(listed) if listed else set()
        if len(parked) < len(listed):
            _log.warning("parked_ids_reused", extra={"ids": sorted({*listed} - parked)[:_SHOWN]})
            self._learn()
            for entry in self._found:
                if not entry.held:
                    self._note((entry.topic, entry.key), entry.id)
        return parked

    def _learn(self) -> None:
        self._first.clear()
        self._ids.clear()
        self.lowest = None
        for key, record_id in self._places.load(each=not self._holds):
            self._note(key, record_id)

    def _refuse(self, row: Row, reason: str) -> None:
        if self._policy == "stop":
            raise RecordError(
                f"record {row[0]} for topic {row[1][:80]!r} can never be sent",
                evidence=reason,
                next_step=f"correct it in the outbox or delete it there; {self._otherwise}",
            )
        self._found.append(Entry(row[0], row[1], row[2], reason, held=False))
        self._note(row[1:3], row[0])

    def _note(self, key: HeldKey, record_id: int) -> None:
        self._first[key] = min(record_id, self._first.get(key, record_id))
        if not self._holds:
            self._ids[record_id] = key
        self.lowest = record_id if self.lowest is None else min(self.lowest, record_id)
