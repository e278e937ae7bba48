"""The batch that is being filled: it reads pages, filters their records and hands the records over to the delivery.

    page ─► parking ─► paused records ─► barrier ─► delivery
             │            │                │
             parked       deferred         deferred          deferred rows take precedence in later batches

Promises
- A batch is bounded by records, bytes and time, and ends early when the term ends or a stop is requested.
- Rows that were handed over are released, except for the last row: the next page or a slow broker may need the memory.
- The ids of deferred and unsent records are listed for the checkpoint, ordered within each key.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harvest_lib.batching.barrier import Barrier, NoBarrier
from harvest_lib.batching.batch_size import BATCH_BYTES, BATCH_SECONDS, LARGE_PAGE_BYTES
from harvest_lib.batching.key_barrier import KeyBarrier
from harvest_lib.batching.paused_records import PausedRecords
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.batching.redelivery import Redelivery
from harvest_lib.batching.rights import Rights
from harvest_lib.clock import boot_seconds
from harvest_lib.errors import HarvestError, RecordError
from harvest_lib.record import ID, Row
from harvest_lib.record.rows import ids_of, keys_of
from harvest_lib.source import Position

_SLICE = 500
"""Number of records that are handed over between two checks of the term."""

_MANY = 100
"""Least number of deferred rows that may form a batch without new rows. A lower limit would make new rows wait long."""


class RecordRefused(Exception):
    """The client refused a record of the batch when it was handed over. Earlier records may be on the wire."""

    def __init__(self, row: Row, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


class PagesStale(Exception):
    """The source has to be reopened, because the parked records have changed or producers have to be made again."""


class Filled(NamedTuple):
    """A batch that was sent. `position`: the position after the batch; None if there is nothing to commit. `more`: the
    source may have more records."""

    position: Position | None
    more: bool


class _Read(NamedTuple):
    """A page that was handed over. `size`: bytes of the page. `position`: the position after the page. `more`: the
    source has more rows."""

    size: int
    position: Position
    more: bool


class OpenBatch:
    """The open batch of a term; the same object serves one batch after another. Call `begin` whenever the source is
    opened."""

    def __init__(self, ports: BatchPorts, rights: Rights) -> None:
        self.in_flight = 0
        """Number of records that were sent in this batch."""
        self.in_doubt = 0
        """Number of records in the batches that failed since the last committed batch."""
        self.last_sent: Row | None = None
        """The last record that was sent in this batch."""
        self.error: HarvestError | None = None
        """The error that ends this term when the open batch is committed."""
        self.caught_up = False
        """True if the source was read to its end since it was opened. Then the source does not return parked records
        again."""
        self.barrier: Barrier = KeyBarrier() if ports.one_per_key else NoBarrier()
        self.paused = PausedRecords(ports.troubles, ports.parking, one_per_key=ports.one_per_key)
        self.redelivery = Redelivery(ports.source, ports.parking, ports.troubles, self.paused, ports.size.another())
        self._ports = ports
        self._rights = rights
        self._sent: dict[str, int] = {}  # key -> id of the records of this batch, under the key barrier
        self._unsent: Sequence[int] = ()  # ids of unsent records that the position of this batch passes

    def begin(self) -> None:
        """Forget the records, but not the counts. The source returns deferred records again."""
        self.barrier.begin()
        self.paused.begin()
        self._sent.clear()
        self._unsent = ()
        self.caught_up = False

    @property
    def keys(self) -> list[str] | None:
        """Return the keys of the records that were sent in this batch; None without the key barrier, because only the
        key barrier needs the keys. Any thread may read this property."""
        return list(self._sent) if self._ports.one_per_key else None

    @property
    def is_due(self) -> bool:
        """Return True if a checkpoint is due even if nothing is read, because deferred records may be sent or paused
        records were parked."""
        return self.barrier.is_waiting or self.paused.is_due

    @property
    def deferred_ids(self) -> list[int]:
        """Return the ids of records that were read but not sent yet, ordered within each key."""
        return [*self._unsent, *self.barrier.deferred_ids, *self.paused.ids]

    @property
    def has_deferred(self) -> bool:
        """Return True if records that were read still wait to be sent."""
        return self.barrier.deferred_count > 0 or bool(self.paused.ids)

    def recheck(self) -> None:
        """Prepare for `fill`: check the topics of paused records, if a check is due. Raises PagesStale."""
        self.barrier.is_isolated = False
        self.paused.recheck()
        if self._ports.parking.is_stale or self._ports.producers_are_outdated():
            raise PagesStale

    def fill(self, due_at: Position | None) -> Filled:
        """Send deferred rows and then pages, until the batch is full or the source has no more rows. `due_at` is the
        position to commit if nothing is read; None if no commit is due. Raises RecordRefused and PagesStale."""
        began, size, more, position = boot_seconds(), 0, True, due_at
        if due_at is not None:
            self._send(self.paused.filter([]))
            if _MANY <= self.in_flight < self.barrier.deferred_count / 2:
                return Filled(due_at, more)
        while self._room > 0 and size < BATCH_BYTES and boot_seconds() - began < BATCH_SECONDS and self._may_read():
            read = self._read_and_send()
            if read is None:
                more = False
                break
            size, position, more = size + read.size, read.position, read.more
            if not more or read.size > LARGE_PAGE_BYTES or self.barrier.is_crowded:
                break
        self.caught_up = self.caught_up or not more
        return Filled(position, more)

    def redeliver(self) -> list[int] | None:
        """Send parked records that an operator retried, in at most every second batch. Return the ids of the records to
        release after the commit; None if this batch is not a redelivery. Raises RecordRefused."""
        again = self.redelivery.next(self.barrier) if self.redelivery.is_next(caught_up=self.caught_up) else None
        if again is None:
            return None
        self._hand_over(again.rows)
        return again.ids

    def probe(self) -> bool:
        """Send one record of a paused topic in a batch of its own. Return False if no such record is due. Raises
        RecordRefused."""
        row = self.paused.probe(self.barrier.defers)
        if row is None:
            return False
        self._hand_over(self.barrier.filter_retried([row]))
        return True

    def committed(self) -> None:
        """Note that all sent records are in Kafka, and that the last checkpoint has passed them."""
        self.last_sent = None
        self.in_flight = self.in_doubt = 0
        self._sent.clear()
        self.paused.committed()

    def abandoned(self) -> None:
        """Note that the batch has failed, and that it is unknown how many of its records are in Kafka."""
        self.in_doubt += self.in_flight
        self.in_flight = 0
        self._sent.clear()

    def failed_ids(self, keys: Iterable[bytes]) -> list[int]:
        """Return the ids of the records of an abandoned batch that are not in Kafka. `keys` are the keys of these
        records: under the key barrier, a key identifies a record of the batch. Return an empty list if the ids are
        unknown, or if all records failed."""
        failed_keys = {each.decode() for each in keys}
        failed = [record_id for key, record_id in self._sent.items() if key in failed_keys]
        return failed if len(failed) == len(failed_keys) < self.in_flight else []

    def defer_failed(self, failed: Sequence[int]) -> int:
        """Defer the failed records of an abandoned batch. Return how many records of the batch are in Kafka."""
        delivered, self.in_flight = self.in_flight - len(failed), len(failed)
        deferred = frozenset(failed)
        self._sent = {key: record_id for key, record_id in self._sent.items() if record_id in deferred}
        self._unsent = [*failed, *self._unsent]
        return delivered

    @property
    def _room(self) -> int:
        return self._ports.size.records - self.in_flight

    def _may_read(self) -> bool:
        has_room = not (self.barrier.is_full or self.paused.is_full or self._ports.parking.is_full)
        return self._rights.may_go_on() and has_room and not self.barrier.is_isolated

    def _read_and_send(self) -> _Read | None:
        """Read a page and hand it over. Return None if the source has no page now, or if the batch has to end."""
        ports, size = self._ports, self._ports.size
        asked = min(size.page, self._room)
        page = ports.source.read(asked)
        if page is None or not self._rights.may_go_on():
            return None
        page_bytes = size.measured(page.rows, asked)
        try:
            rows = ports.parking.filter(page.rows, None if size.is_doubtful else size.largest)
        except RecordError as error:  # the policy is `stop`
            if not self.in_flight:
                raise
            self.error = error
            return None
        if ports.parking.is_stale:
            raise PagesStale
        self.barrier.isolated.update(ports.parking.oversized(rows, size.largest))
        self._send(self.paused.filter(rows))
        return _Read(page_bytes, ports.parking.passed(page.position), page.more)

    def _send(self, rows: Sequence[Row]) -> None:
        """Pass deferred rows, and then `rows`, through the barrier. Hand over the rows that the barrier returns."""
        runs = ((), rows) if self.barrier.is_waiting else (rows,)  # without deferred rows a page is handed over whole
        for run in runs:
            for some in self.barrier.filter(run, self._room, first=not self.in_flight):
                self._hand_over(some)

    def _hand_over(self, rows: Sequence[Row]) -> None:
        for start in range(0, len(rows), _SLICE):
            if not self._rights.may_go_on():  # the batch ends here, and is committed
                self._unsent = [*self._unsent, *ids_of(rows[start:])]
                break
            some = rows[start : start + _SLICE]
            self._ports.observers.handing_over(some)
            refused = self._ports.delivery.send(some, self._rights.may_finish)
            for place, row in enumerate(some) if refused else ():
                if row[ID] in refused:
                    self._note_sent(some[:place])  # they may be on the wire
                    raise RecordRefused(row, refused[row[ID]])
            self._note_sent(some)
            self._ports.source.sent(some)
            self.last_sent = some[-1]

    def _note_sent(self, rows: Sequence[Row]) -> None:
        self.in_flight += len(rows)
        if self._ports.one_per_key:
            self._sent.update(zip(keys_of(rows), ids_of(rows), strict=True))
