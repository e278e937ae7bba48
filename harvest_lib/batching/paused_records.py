"""Deferred records of topics in trouble, while other topics take records (`harvest_lib.delivery.topic_troubles`).

    page ─► parking ─► paused records ─► barrier ─► batch
                        │            ▲
                        └─ deferred ─┘ released once the topic takes records, or parked once it is given up

Promises
- Order is preserved: released records are sent before later records of their topic, and under the key barrier before
  later records of their key in any topic.
- The checkpoint lists the ids of paused records, like ids that the barrier defers. The number of paused records is
  limited: at the limit nothing more is read.
- If the brokers do not name a topic's trouble, a single record probes the topic in a batch of its own, so that no other
  record fails with it.
"""

import logging
from collections.abc import Callable, Sequence, Set

from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parking import BatchParking
from harvest_lib.clock import boot_seconds
from harvest_lib.delivery.topic_troubles import Troubles
from harvest_lib.native import NativeRows
from harvest_lib.record import ID, KEY, TOPIC, Row, row_bytes

_log = logging.getLogger(__name__)

_MOST_RECORDS = 5_000
_MOST_BYTES = 8_000_000
_LOOK_SECONDS = 1.0
"""Interval between checks of the topics of paused records: a topic may have recovered, or be given up."""


class PausedRecords:
    """Paused records of a term. Call `begin` whenever the source is opened: the source returns the records again."""

    def __init__(self, troubles: Troubles, parking: BatchParking | MarkedParking, *, one_per_key: bool) -> None:
        self.size = BatchSize()
        """Size of the batches that probe a topic, see `probe`."""
        self._troubles = troubles
        self._parking = parking
        self._one_per_key = one_per_key
        self._rows: list[Row] = []
        self._keys: set[str] = set()  # of paused records, under the key barrier
        self._pairs: set[tuple[str, str]] = set()  # topics and keys of paused records
        self._bytes = 0
        self._paused: Set[str] = frozenset()  # topics, as of the last `filter`
        self._logged: Set[str] = frozenset()  # paused topics, as logged last
        self._look_at = 0.0
        self._has_parked = False  # since the last commit

    @property
    def ids(self) -> list[int]:
        """Return the ids of paused records, in order."""
        return [row[ID] for row in self._rows]

    @property
    def is_full(self) -> bool:
        """Return True if the limit of paused records is reached: nothing more should be read."""
        return len(self._rows) > _MOST_RECORDS or self._bytes > _MOST_BYTES

    @property
    def is_due(self) -> bool:
        """Return True if a checkpoint is due even if nothing is read, because paused records may be sent or were
        parked."""
        return self._has_parked or (bool(self._rows) and self._troubles.paused != self._paused)

    def defers(self, row: Row) -> bool:
        """Return True if a retried record has to wait: its topic is paused, or paused records of its key have to be
        sent first."""
        return row[TOPIC] in self._troubles.paused or self.has_paused(row)

    def has_paused(self, row: Row) -> bool:
        """Return True if paused records of the row's key have to be sent before the row."""
        return row[KEY] in self._keys or row[1:3] in self._pairs

    def begin(self) -> None:
        """Forget all paused records."""
        self._replace([])
        self._paused, self._has_parked = frozenset(), False

    def committed(self) -> None:
        """Note that a batch was committed, together with the parked records."""
        self._has_parked = False

    def filter(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that may be sent, preceded by paused rows of recovered topics. Defer the other rows."""
        paused = self._troubles.paused
        if paused != self._logged:
            self._log_changes(paused)
        if paused != self._paused:
            rows, self._paused = [*self._rows, *rows], paused
            self._replace([])
        if not paused or (not self._keys and isinstance(rows, NativeRows) and _names_none(rows, paused)):
            return rows
        return [row for row in rows if self._may_go(row, paused)]

    def recheck(self) -> None:
        """Pass paused records through the parking, at most once a second. The parking queries their topics, and parks
        the records of a topic that is given up."""
        now = boot_seconds()
        if not self._rows or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        rows = self._rows
        sendable = self._parking.filter(rows)
        if len(sendable) < len(rows):
            self._has_parked = True
            self._replace(sendable)

    def probe(self, defers: Callable[[Row], bool]) -> Row | None:
        """Remove and return the first paused record of a topic whose probe is due; None if no probe is due. Records for
        which `defers` returns True are skipped."""
        seen: set[str] = set()
        tried: set[str] = set()
        for place, row in enumerate(self._rows):
            topic = row[TOPIC]
            if topic not in tried and row[KEY] not in seen:
                tried.add(topic)
                if self._troubles.may_probe(topic) and not defers(row):
                    self._replace([*self._rows[:place], *self._rows[place + 1 :]])
                    return row
            if self._one_per_key:
                seen.add(row[KEY])
            if self._paused <= tried:
                break
        return None

    def _may_go(self, row: Row, paused: Set[str]) -> bool:
        if row[TOPIC] not in paused and row[KEY] not in self._keys:
            return True
        self._add(row)
        return False

    def _replace(self, rows: Sequence[Row]) -> None:
        self._rows, self._keys, self._pairs, self._bytes = [], set(), set(), 0
        for row in rows:
            self._add(row)

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._bytes += row_bytes(row)
        self._pairs.add(row[1:3])
        if self._one_per_key:
            self._keys.add(row[KEY])

    def _log_changes(self, paused: Set[str]) -> None:
        for topic in sorted(paused - self._logged):
            _log.warning("topic_paused", extra={"topic": topic, "reason": self._troubles.reason(topic)})
        for topic in sorted(self._logged - paused):
            _log.info("topic_resumed", extra={"topic": topic})
        self._logged = paused


def _names_none(rows: NativeRows, topics: Set[str]) -> bool:
    """Return True if no row is for one of the topics. The summary of a page that is not plain may lack topics."""
    return rows.summary.is_plain and topics.isdisjoint(rows.summary.topics)
