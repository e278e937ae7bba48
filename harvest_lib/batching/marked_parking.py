"""Parking of a marked table: records that can never be sent are moved out of the outbox into the table of parked
records.

A record that Kafka rejects permanently is *parked*. Under the policy `hold_key` its key is then held in its topic:
later records of the key for that topic are parked behind it, in order, until an operator retries or drops the parked
record. The key is not held in other topics, so that a writer cannot hold keys in a topic that it may not write to.
Under `skip` later records of the key are sent. Under `stop` the harvester stops instead.

Promises
- A parked record is moved out of the outbox, durably, before its page is sent. No later position contains the record's
  id, so the record is not purged if an operator puts it back.
- Under `hold_key` no record of a key is sent after a parked record of the key. If an operator releases a key while
  later records of the key are being held, all records are marked again (`is_stale`), so that the records that the
  operator put back are sent first.
"""

import logging
from collections.abc import Mapping, Sequence, Set

from harvest_lib.config.limits import Policy
from harvest_lib.delivery import Topics
from harvest_lib.errors import RecordError
from harvest_lib.outbox.parking.parked_record import HeldKey
from harvest_lib.record import ID, TOPIC, Row
from harvest_lib.source import MarkPages, Position

_log = logging.getLogger(__name__)

_SHOWN = 10


class MarkedParking:
    """Parking of a term on a marked table; it has the methods of `BatchParking`. It never returns parked records to be
    sent: records that an operator puts back in the outbox are marked like new records.

    Each page comes with the keys that have parked records, since a fenced leader or an operator may change these keys.
    """

    is_empty = True
    lowest: int | None = None

    def __init__(self, policy: Policy, topics: Topics, pages: MarkPages) -> None:
        self._policy = policy
        self._topics = topics
        self._pages = pages
        # The lowest id parked since the source was opened, per topic and key, under `hold_key`.
        self._first: dict[HeldKey, int] = {}
        self.is_full = False
        """Always False, because records to park are written at once."""
        self.is_stale = False
        """True if an operator released a key while records of the key were being held. Then the source has to be
        reopened."""

    def begin(self, retried: Sequence[int] = ()) -> bool:  # noqa: ARG002 - nothing is retried by its id
        self._first.clear()
        self.is_stale = False
        return True

    def filter(self, rows: Sequence[Row], largest: int | None = None) -> Sequence[Row]:
        refusals = self._topics.refused(rows, largest)
        if not refusals and not self._first and not self._pages.parked:
            return rows
        first = {**self._first, **self._pages.parked} if self._policy == "hold_key" else {}
        good: list[Row] = []
        refused: list[Row] = []
        behind: list[int] = []
        for row in rows:
            if row[ID] > first.get(row[1:3], row[ID]):
                behind.append(row[ID])
            elif row[ID] in refusals:
                self._require_parking(row, refusals[row[ID]])
                refused.append(row)
                if self._policy == "hold_key":
                    first[row[1:3]] = min(row[ID], first.get(row[1:3], row[ID]))
            else:
                good.append(row)
        self._park(refused, refusals, behind)
        return good

    def passed(self, position: Position) -> Position:  # noqa: ARG002 - it may have ids parked since
        return self._pages.position()

    def oversized(self, rows: Sequence[Row], largest: int) -> set[int]:
        return self._topics.oversized(rows, largest)

    def blame(self, row: Row, reason: str) -> None:
        self._topics.blame(row[TOPIC], reason)

    def park(self, row: Row, reason: str) -> bool:
        self._require_parking(row, reason)
        self._park([row], {row[ID]: reason})
        return True

    def write(self) -> bool:
        return True

    def due(self, limit: int, skipped: Set[str] = frozenset()) -> list[int]:  # noqa: ARG002 - as above
        return []

    def forget_topics(self) -> None:
        self._topics.ask_again()

    def filter_retried(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    def release(self, ids: Sequence[int]) -> bool:  # noqa: ARG002 - as above
        return True

    def _require_parking(self, row: Row, reason: str) -> None:
        """Raise RecordError under `stop`."""
        if self._policy == "stop":
            raise RecordError(
                f"record {row[ID]} for topic {row[TOPIC][:80]!r} can never be sent",
                evidence=reason,
                next_step="correct it in the outbox or delete it there; `parking: hold_key` would park it",
            )

    def _park(self, refused: Sequence[Row], reasons: Mapping[int, str], behind: Sequence[int] = ()) -> None:
        """Move records out of the outbox: refused records, and records behind a refused or parked record with the same
        key."""
        if not refused and not behind:
            return
        of_refused = {row[ID]: reasons[row[ID]] for row in refused}
        released = self._pages.park(of_refused, behind)
        if self._policy == "hold_key":
            for row in refused:
                self._first[row[1:3]] = min(row[ID], self._first.get(row[1:3], row[ID]))
        self.is_stale = self.is_stale or bool(released)
        if refused:
            topics = sorted({row[TOPIC] for row in refused})[:_SHOWN]
            said = sorted(set(of_refused.values()))[:_SHOWN]
            ids = list(of_refused)[:_SHOWN]
            _log.warning("records_parked", extra={"ids": ids, "topics": topics, "count": len(refused), "reasons": said})
        if held := len(behind) - len(released):
            _log.info("records_held", extra={"count": held})
