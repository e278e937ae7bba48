"""Parking for sources that only read. It lists records that can never be sent, and later records that are held behind
these records. All records stay in the outbox. `harvest_lib.batching.marked_parking` describes the policies.

Promises
- A record is saved as parked, under the epoch, before a commit passes the record.
- Under `hold_key` no record of a key is sent to a topic after a parked record of the key for that topic.
- A row is skipped as parked only if it is the row that was parked: another row may have the same id.
- Records that an operator retries are sent per key in the order of their ids. They stay parked until they are in Kafka.
- While no record is parked or refused, rows are not checked one by one.
"""

import logging
from collections.abc import Sequence, Set
from itertools import islice

from harvest_lib.config.limits import Policy
from harvest_lib.delivery import Topics
from harvest_lib.errors import RecordError
from harvest_lib.outbox.parking.leader_ids import Entry, ParkedIds
from harvest_lib.outbox.parking.parked_record import HeldKey
from harvest_lib.record import ID, KEY, TOPIC, Row
from harvest_lib.source import Position

_log = logging.getLogger(__name__)

_SHOWN = 10
_MOST_FOUND = 10_000
"""Limit of the records to park that are in memory until `write`."""
_LISTED = 50_000
"""Limit of due records in memory. It is high because each query for due records reads all parked records."""


class BatchParking:
    """Decides which records are parked or held in a term. Call `begin` whenever the source is opened."""

    is_stale = False
    """True if pages have to be read again; always False here."""

    def __init__(
        self,
        policy: Policy,
        topics: Topics,
        parked_ids: ParkedIds,
        otherwise: str = "`parking: hold_key` would park it",
    ) -> None:
        self._policy = policy
        self._topics = topics
        self._parked_ids = parked_ids
        self._otherwise = otherwise
        self._holds = policy != "skip"
        self._first: dict[HeldKey, int] = {}  # the lowest parked id per topic and key
        self._ids: dict[int, HeldKey] = {}  # all parked ids with their keys; empty if keys are held
        self._found: list[Entry] = []  # not written yet
        self._due: dict[int, HeldKey | None] = {}  # due ids in order; the key only at the key's last id
        self._grown: set[HeldKey] = set()  # keys with records held since `_due` was read
        self.lowest: int | None = None
        """The lowest id of the records that are parked or wait for `write`; None if there are none."""

    @property
    def is_full(self) -> bool:
        """Return True if nothing should be read before the next `write`, because the limit of entries that wait for
        `write` is reached."""
        return len(self._found) >= _MOST_FOUND

    def begin(self, retried: Sequence[int] = ()) -> bool:
        """Release the `retried` records, which are in Kafka, and load the parked records. Forget records that wait for
        `write`, because the source returns these records again. Return False if fenced."""
        self._found.clear()
        self._due.clear()
        if retried:
            return self.release(retried)
        self._learn()
        return True

    def filter(self, rows: Sequence[Row], largest: int | None = None) -> Sequence[Row]:
        """Return the rows that may be sent. The other rows are parked, or the next `write` parks them. `largest` is the
        length of the longest value. If `largest` is None, each record is measured. Raises RecordError under `stop`."""
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
                self._found.append(Entry(record_id, row[TOPIC], row[KEY], f"held behind {first}", held=True))
                self._grown.add(row[1:3])
            elif record_id in refusals:
                self._refuse(row, refusals[record_id])
            else:
                good.append(row)
        return good

    def oversized(self, rows: Sequence[Row], largest: int) -> set[int]:
        """Return the ids of rows that need a batch of their own, given the length of the longest value."""
        return self._topics.oversized(rows, largest)

    def passed(self, position: Position) -> Position:
        """Return the position to commit after a page at `position`, when the rows of the page were filtered."""
        return position

    def blame(self, row: Row, reason: str) -> None:
        """Note that Kafka did not take a record that was sent alone, for a reason that may pass."""
        self._topics.blame(row[TOPIC], reason)

    def park(self, row: Row, reason: str) -> bool:
        """Park at once a record that was refused when it was sent. Return False if fenced. Raises RecordError under
        `stop`."""
        self._refuse(row, reason)
        return self.write()

    def write(self) -> bool:
        """Save the records found since the last call as parked. Return False if fenced."""
        found, self._found = list({entry.id: entry for entry in self._found}.values()), []
        if not found:
            return True
        if not self._parked_ids.add(found):
            return False
        parked = [entry for entry in found if not entry.held]
        if parked:
            reasons = sorted({entry.reason for entry in parked})[:_SHOWN]
            topics = sorted({entry.topic for entry in parked})[:_SHOWN]
            ids = [entry.id for entry in parked[:_SHOWN]]
            _log.warning(
                "records_parked", extra={"ids": ids, "topics": topics, "count": len(parked), "reasons": reasons}
            )
        if held := len(found) - len(parked):
            _log.info("records_held", extra={"count": held})
        return True

    # -- redelivery

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is parked."""
        return self.lowest is None

    def due(self, limit: int, skipped: Set[str] = frozenset()) -> list[int]:
        """Return at most `limit` ids of records that were retried or are no longer held. Records of `skipped` topics
        are left out."""
        if self._due and not skipped:
            wanted = list(islice(self._due, limit))
            if len(self._parked_ids.matching(wanted)) == len(wanted):  # none of them was dropped since
                return wanted
        known = [(key, each) for each, key in self._ids.items()] if self._ids else list(self._first.items())
        keys = [key for key in self._parked_ids.moved(known) if key[0] not in skipped]
        self._due.clear()
        if not keys:
            return []
        self._learn()
        found = self._parked_ids.due(keys, limit if skipped else _LISTED, keep_order=self._holds)
        if not skipped:
            self._due = found
            self._grown.clear()
        return list(islice(found, limit))

    def forget_topics(self) -> None:
        """Forget the facts about topics because of which records were parked, so that the brokers are queried again."""
        self._topics.ask_again()

    def filter_retried(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the due rows that may be sent. The next `write` parks the refused rows once more, and their keys stay
        held. Raises RecordError under `stop`."""
        refusals = self._topics.refused(rows)
        if not refusals:
            return rows
        good: list[Row] = []
        held: set[HeldKey] = set()
        for row in rows:
            topic_and_key = row[1:3]
            if topic_and_key in held:
                continue
            if row[ID] in refusals:
                self._refuse(row, refusals[row[ID]])
                held.update([topic_and_key] if self._holds else [])
            else:
                good.append(row)
        return good

    def release(self, ids: Sequence[int]) -> bool:
        """Remove these ids from the parked records: their records are in Kafka, or deleted. Return False if fenced."""
        if not self._parked_ids.release(ids):
            return False
        gone = [self._due.pop(each, None) for each in ids]
        if not self._due:
            self._learn()
            return True
        # `_due` lists more records, and so shows which keys are free now, without a query of all parked records.
        for each in ids:
            self._ids.pop(each, None)
        if self._holds:
            for key in {key for key in gone if key is not None} - self._grown:
                self._first.pop(key, None)
        self.lowest = min(self._first.values() if self._holds else self._ids, default=None)
        return True

    def _parked(self, rows: Sequence[Row]) -> set[int]:
        """Return the ids of the rows that are parked. If another row has the id of a parked record, load the parked
        records again."""
        listed = [row[0] for row in rows if row[0] in self._ids or self._first.get(row[1:3]) == row[0]]
        parked = self._parked_ids.matching(listed) if listed else set()
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
        for key, record_id in self._parked_ids.load(each=not self._holds):
            self._note(key, record_id)

    def _refuse(self, row: Row, reason: str) -> None:
        if self._policy == "stop":
            raise RecordError(
                f"record {row[ID]} for topic {row[TOPIC][:80]!r} can never be sent",
                evidence=reason,
                next_step=f"correct it in the outbox or delete it there; {self._otherwise}",
            )
        self._found.append(Entry(row[ID], row[TOPIC], row[KEY], reason, held=False))
        self._due.clear()
        self._note((row[TOPIC], row[KEY]), row[ID])

    def _note(self, key: HeldKey, record_id: int) -> None:
        self._first[key] = min(record_id, self._first.get(key, record_id))
        if not self._holds:
            self._ids[record_id] = key
        self.lowest = record_id if self.lowest is None else min(self.lowest, record_id)
