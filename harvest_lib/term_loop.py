"""One term of harvesting: mark, admit, send, and purge or reset what lands, until the term is over.

    fetch (A3) ─► barrier and window (A4, A5) ─► send (A6-A8) ─► reports ─┬─ acknowledged: purge (B1), lower (B4, B5)
      ▲                                                                      └─ failed: reset (B2), force remark (B3),
      └────────── new leader id, pending dropped, mark again (A9) ◄──────────                    lower (B4, B5)

Promises
- Purge comes before the barrier is lowered: the next record of a key leaves only when the one before is in Kafka *and*
  out of the table, for good.
- A call to the database whose outcome is unknown is repeated (purge: harmless) or answered with a new leader id (mark,
  reset), as a failed delivery is. Nothing is lost by it: what is marked under another id is simply marked again.
- Nothing is handed to the producer once the term is not live, and nothing in its queue leaves after `end`.
"""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harvest_lib.config import Limits
from harvest_lib.deadline import Deadline, boot_seconds
from harvest_lib.delivery.protocol import Delivery, Failure, Reports
from harvest_lib.errors import DatabaseAccessDenied, DatabaseUnavailable
from harvest_lib.events import Event, LeaderRefreshed
from harvest_lib.inflight import InFlight
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.record import Row
from harvest_lib.source import Source

_log = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 0.002
_IDLE_POLL_SECONDS = 0.05
"""An idle loop asks the database at most this often, unless `markBackoff` says less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What a term works with, and whom it tells."""

    source: Source
    delivery: Delivery
    limits: Limits
    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    """Told how many records were acknowledged and purged."""


class TermLoop:
    """Harvest under one term. `leader_id` changes when the term is refreshed; `in_flight` may be read from outside."""

    def __init__(self, term: Term, wiring: Wiring, stopping: threading.Event) -> None:
        self.leader_id = term.leader_id
        self.in_flight = InFlight(wiring.limits.max_in_flight_records)
        self.idle = False
        """True when the last look found the backlog empty and nothing was in flight."""
        self._term = term
        self._wiring = wiring
        self._source = wiring.source
        self._delivery = wiring.delivery
        self._stopping = stopping
        self.abandoned = 0
        """How many records were in flight, their fate unknown, when the term ended."""
        self._landed: list[Row] = []  # acknowledged, not purged yet
        self._lost = False  # the database did not answer; ask nothing of it before it is opened again
        self._force_remark = False
        self._pause_until = 0.0
        self._mark_backoff = 0.0
        self._mark_at = 0.0

    def run(self) -> None:
        """Harvest until the term is over or a stop is asked for; then let things land, or make sure they do not."""
        self._term.quiesced.clear()
        try:
            self._delivery.begin(self.leader_id)
            self._open()
            while self._may_go_on():
                self._settle(self._delivery.poll(self._poll_seconds()))
                if boot_seconds() < self._pause_until or not self._may_go_on():
                    continue
                if self._force_remark:
                    self._remark()
                    continue  # what landed meanwhile is purged before anything is marked again
                self._mark()
                self._send()
        finally:
            try:
                self._end()
            finally:
                self._term.quiesced.set()

    def _may_go_on(self) -> bool:
        return self._term.is_live() and not self._stopping.is_set()

    def _poll_seconds(self) -> float:
        now = boot_seconds()
        if now < self._pause_until:
            return min(self._pause_until - now, _IDLE_POLL_SECONDS)
        if self.in_flight.records:
            return _BUSY_POLL_SECONDS
        return min(max(0.0, self._mark_at - now), _IDLE_POLL_SECONDS)

    def _mark(self) -> None:
        limits, now = self._wiring.limits, boot_seconds()
        wanted = min(limits.mark_query_records, self.in_flight.room)
        worthwhile = min(limits.mark_query_records, max(1, limits.max_in_flight_records // 2))
        if wanted < worthwhile or now < self._mark_at:
            return
        rows: list[Row] = []
        if not self._asked(lambda: rows.extend(self._source.fetch(wanted))):
            return
        self.in_flight.offer(rows)
        if rows:
            self.idle = False
            self._mark_backoff = self._mark_at = 0.0
        else:
            self.idle = not (self.in_flight.records or self.in_flight.pending or self._landed)
            slowest = max(limits.mark_backoff_seconds, _IDLE_POLL_SECONDS)
            self._mark_backoff = min(slowest, max(limits.mark_backoff_seconds, self._mark_backoff * 1.5))
            self._mark_at = boot_seconds() + self._mark_backoff

    def _send(self) -> None:
        rows = self.in_flight.admit()
        if rows:
            self._delivery.send(rows, self._may_go_on)
            self.in_flight.withdraw(rows)

    def _settle(self, reports: Reports) -> None:
        self._landed.extend(reports.acknowledged)
        if self._landed and not self._lost:
            landed = self._landed
            if self._asked(lambda: self._source.acknowledge([row[0] for row in landed])):
                self._landed = []
                self.in_flight.settle(landed)
                self._wiring.delivered(len(landed))
        if reports.failed:
            failed = [failure.row for failure in reports.failed]
            if not self._lost:
                self._asked(lambda: self._source.reset([row[0] for row in failed]))
            self._force_remark = True
            self.in_flight.settle(failed)
            self._pause_until = boot_seconds() + self._wiring.limits.io_error_backoff_seconds
            _log_failures(reports.failed)

    def _remark(self) -> None:
        """Take a new leader id and start from the head again, where the oldest of what failed now stands."""
        self.in_flight.drop_pending()
        self.leader_id = uuid.uuid4()
        if self._open():
            self._force_remark = False
            self._mark_at = 0.0
            self._delivery.begin(self.leader_id)
            self._wiring.emit(LeaderRefreshed(leader_id=self.leader_id))

    def _open(self) -> bool:
        self._lost = False
        return self._asked(lambda: self._source.open(self.leader_id))

    def _asked(self, call: Callable[[], None]) -> bool:
        """Ask the database; False if it did not answer, and then everything marked so far is marked again."""
        try:
            call()
        except (DatabaseUnavailable, DatabaseAccessDenied) as error:
            if not self._force_remark:
                _log.warning("database_unavailable", extra={"reason": error.evidence})
            self._source.close()
            self._lost = self._force_remark = True
            self._pause_until = boot_seconds() + self._wiring.limits.io_error_backoff_seconds
            return False
        return True

    def _end(self) -> None:
        """Leave nothing unaccounted for. An orderly end lets what is in flight land; a fenced one stops it at once."""
        dropped = self.in_flight.drop_pending()
        fenced = self._term.ended is TermEnd.FENCED
        abandoned = Reports()
        try:
            if self._lost and not fenced:
                self._open()
            limits = self._wiring.limits
            patience_seconds = min(limits.drain_interval_seconds, limits.queue_timeout_seconds)
            deadline = Deadline(0.0 if fenced else patience_seconds)
            while self.in_flight.records and not deadline.passed and self._term.ended is not TermEnd.FENCED:
                self._settle(self._delivery.poll(min(_IDLE_POLL_SECONDS, deadline.remaining_seconds)))
        finally:
            # Whatever happened, nothing leaves after this.
            if self.in_flight.records > len(self._landed):
                abandoned = self._delivery.abandon()
        self.abandoned = len(abandoned.failed)
        if self.abandoned:
            _log.warning("in_flight_abandoned", extra={"records": self.abandoned, "leader_id": str(self.leader_id)})
        self._settle(Reports(acknowledged=abandoned.acknowledged))
        dropped.extend(failure.row[0] for failure in abandoned.failed)
        if dropped and not fenced and not self._lost:
            self._asked(lambda: self._source.reset(dropped))


def _log_failures(failed: Sequence[Failure]) -> None:
    reasons = deque({failure.reason for failure in failed}, maxlen=3)
    _log.warning("delivery_failed", extra={"records": len(failed), "reasons": sorted(reasons)})
