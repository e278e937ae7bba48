"""Harvest under one term: mark, admit, send, and purge or reset what is acknowledged or failed, until the term ends.

    fetch (A3) ─► barrier and window (A4, A5) ─► send (A6-A8) ─► reports ─┬─ acknowledged: purge (B1), lower (B4, B5)
      ▲                                                                   ├─ refused: park, lower
      └────────── new leader id, pending dropped, mark again (A9) ◄───────┴─ failed: reset (B2), force remark (B3),
                                                                                       lower (B4, B5)

The rules carry the names of goharvest's document:

    A1      go on only while the term is live and no stop is asked for     `run`
    A2      clear the flag that forces a remark                            `_refresh`
    A3      mark the next records at the head and read them                `_fetch`
    A4      wait until the window has room                                 `_send`
    A5      wait until no record of the same key is in flight              `_send`
    A6, A7  count the record as in flight and raise its key's barrier      `_send`
    A8      publish the record without waiting for its report              `_send`
    A9      forced to remark: drop what is pending, take a new leader id   `_refresh`
    B1      acknowledged: purge the record                                 `_fetch`
    B2, B3  failed: reset the record, then force a remark                  `_reset`
    B4, B5  free its place in the window and lower its key's barrier       `_lower`

The database is called on a separate thread, one request at a time; meanwhile records are sent and reports come in.

Promises
- Purge comes before the barrier is lowered: the next record of a key leaves only when the one before is in Kafka *and*
  out of the table, for good. So does the reset of one that failed, and the parking of one that was refused.
- A call to the database whose outcome is unknown is repeated (purge: harmless) or answered with a new leader id (mark,
  reset, park), as a failed delivery is. Nothing is lost by it: what is marked under another id is simply marked again.
- Nothing is handed to the producer once the term is not live, and nothing in its queue leaves after `end`.
"""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.delivery.protocol import Failure, Reports
from harvest_lib.errors import RecordError
from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.marking.pacing import IDLE_SECONDS, Backoff
from harvest_lib.marking.ports import MarkPorts
from harvest_lib.marking.requests import PendingRequest
from harvest_lib.marking.window import KeyBarrierWindow, Window
from harvest_lib.record import Row
from harvest_lib.record.rows import ids_of
from harvest_lib.source import ClaimedRows, ClaimSource

_log = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 0.002
_LAST_ANSWER_SECONDS = 5.0
"""How long the end of a term waits for the database; what is not answered stays marked for the next leader."""


class MarkLoop:
    """Harvest under one term. `leader_id` changes when the term is refreshed; `in_flight` may be read from outside."""

    def __init__(self, term: Term, ports: MarkPorts, stopping: threading.Event) -> None:
        self.leader_id = term.leader_id
        window = KeyBarrierWindow if ports.one_per_key else Window
        self.in_flight = window(ports.limits.max_in_flight_records)
        self.idle = False
        """True when the last fetch found the backlog empty and nothing was in flight."""
        self.abandoned = 0
        """How many records, in flight or failed, had an unknown fate when the term ended."""
        self.epoch = None
        self._term = term
        self._ports = ports
        self._delivery = ports.delivery
        self._parking = ports.parking
        self._stopping = stopping
        self._request = PendingRequest(ports.source)
        self._backoff = Backoff(ports.limits)
        self._acked: list[int] = []  # acknowledged, not purged yet
        self._failed: list[Row] = []  # not reset yet
        self._refused: list[Row] = []  # not parked yet
        self._in_doubt: set[int] = set()  # failed, and not acknowledged since: they may be on the wire
        # Marked and not sent: marked again under the next leader id, or reset at the end.
        self._dropped: set[int] = set()
        self._ending = False
        self._force_remark = False
        self._pause_until = 0.0
        self._progress_at = boot_seconds()

    @property
    def holds_off(self) -> bool:
        """Tell, at the end, whether what was on the wire may still arrive."""
        return bool(self.abandoned)

    def run(self) -> None:
        """Harvest until the term is over or a stop is asked for; then wait for what is in flight, or stop it."""
        self._term.quiesced.clear()
        try:
            self.begin()
            while self._may_go_on():  # A1
                self.turn()
        finally:
            try:
                self._end()
            finally:
                self._term.quiesced.set()

    def begin(self) -> None:
        """Prepare to send and to mark under the term's leader id."""
        self._delivery.begin(self.leader_id)
        self._open()

    def turn(self) -> None:
        """Do once everything that is due now."""
        self._collect()
        self._take(self._delivery.poll(self._poll_seconds()))
        self._collect()
        self._ask()
        self._send()

    def _may_go_on(self) -> bool:
        return self._term.is_live() and not self._stopping.is_set()

    def _poll_seconds(self) -> float:
        now = boot_seconds()
        if self.in_flight.records > len(self._acked):
            return _BUSY_POLL_SECONDS
        if self._request.pending:
            self._request.wait(IDLE_SECONDS)
            return 0.0
        due = max(self._backoff.mark_at, self._pause_until) - now
        # The client cuts off what is less than a millisecond: rounded down, the last one would be spent spinning.
        return min(due + 0.001, IDLE_SECONDS) if due > 0 else 0.0

    # -- requests to the database, one at a time

    def _ask(self) -> None:
        """Submit the most urgent request, if none is pending."""
        if self._request.pending:
            return
        pausing = boot_seconds() < self._pause_until
        if self._request.lost:
            if not pausing:
                self._refresh()
        elif self._failed:
            self._reset()
        elif self._parking.has_work:
            self._park()
        elif self._force_remark:
            if self._acked:
                self._fetch(0)  # acknowledged records are purged before anything is marked again
            elif not pausing:
                self._refresh()
        else:
            self._watch_queue()
            now = boot_seconds()
            room = 0 if pausing else self._backoff.room(self.in_flight, now)
            if room or self._backoff.purge_is_worthwhile(len(self._acked), self.in_flight, now):
                self._fetch(room)

    def _collect(self) -> None:
        """Collect the answer, if there is one. If the database was lost, everything marked so far is marked again."""
        if not self._request.collect():
            self._force_remark = True
            self._pause_until = boot_seconds() + self._ports.limits.io_error_backoff_seconds

    def _open(self) -> None:
        leader_id = self.leader_id
        self._request.submit(lambda source: source.open(leader_id), self._opened)

    def _opened(self, _: None) -> None:
        self._request.lost = False
        refused = ids_of(self._refused)
        self._drop([*refused, *self._parking.ids])  # they come again, and are refused again
        self._lower(refused)
        self._refused.clear()
        self._parking.begin()

    def _refresh(self) -> None:
        """Take a new leader id (A9) and mark again from the head, where the oldest failed record now is."""
        self._drop(self.in_flight.drop_pending())
        self.leader_id = leader_id = uuid.uuid4()

        def opened(_: None) -> None:
            self._opened(None)
            self._force_remark = False  # A2
            self._backoff.wake()
            self._progress_at = boot_seconds()
            self._delivery.begin(leader_id)
            self._ports.emit(LeaderRefreshed(leader_id=leader_id))

        self._request.submit(lambda source: source.open(leader_id), opened)

    def _drop(self, ids: Iterable[int]) -> None:
        """Remember records that were marked and are not sent now."""
        self._dropped.update(ids)

    def _watch_queue(self) -> None:
        """Force a remark when marked records have waited longer than `queueTimeout` to be sent."""
        waited = boot_seconds() - self._progress_at
        if not self.in_flight.pending:
            self._progress_at = boot_seconds()
        elif waited > self._ports.limits.queue_timeout_seconds:
            _log.warning("queue_timeout", extra={"records": self.in_flight.pending, "waited_seconds": round(waited, 1)})
            self._force_remark = True

    def _fetch(self, limit: int) -> None:
        """Purge acknowledged records (B1) and mark as many as there is room for (A3), in one call."""
        acked = list(self._acked)
        if not acked and not limit:
            return
        self._backoff.purged()

        def fetched(batch: ClaimedRows) -> None:
            del self._acked[: len(acked)]
            self._lower(acked)
            if acked:
                self._ports.delivered(len(acked))
            if self._ending or self._force_remark:  # (A9)
                self._drop(ids_of(batch.rows))
            elif limit:
                if self._dropped:
                    self._dropped.difference_update(ids_of(batch.rows))
                self._offer(batch)

        def fetch(source: ClaimSource) -> ClaimedRows:
            # Checked again here: a process frozen before this would take its successor's rows when it thaws.
            return source.fetch(limit if self._term.is_live() else 0, acked if self._may_purge() else [])

        self._request.submit(fetch, fetched)

    def _may_purge(self) -> bool:
        """Tell whether acknowledged records may be purged: under the barrier always, otherwise unless fenced.

        Pipelined, the successor of a fenced leader may have sent the first of these records again. If the rest were
        purged, that one would be the last that consumers get.
        """
        return self._ports.one_per_key or self._term.ended is not TermEnd.FENCED

    def _offer(self, batch: ClaimedRows) -> None:
        rows = batch.rows
        try:
            self.in_flight.offer(self._parking.filter(rows, batch.parked))
        except RecordError:  # the configuration says to stop
            self._drop(ids_of(rows))
            raise
        self.idle = not (rows or self.in_flight.records or self.in_flight.pending or self._parking.has_work)
        self._backoff.found(len(rows), boot_seconds())

    def _reset(self) -> None:
        """Reset failed records (B2), force a remark (B3), and only then lower the barrier (B4, B5)."""
        failed = ids_of(self._failed)

        def given_back(_: None) -> None:
            self._force_remark = True
            del self._failed[: len(failed)]
            self._lower(failed)

        self._request.submit(partial(_reset, ids=failed), given_back)

    def _park(self) -> None:
        """Park refused records and those held behind them, outside the outbox; then lower the barrier."""
        ids, (refused, behind) = ids_of(self._refused), self._parking.work()

        def parked(released: frozenset[int]) -> None:
            del self._refused[: len(ids)]
            self._lower(ids)
            self._drop(released)
            if self._parking.done(refused, behind, released):
                self._force_remark = True  # the key's records are back in the outbox, before those we hold

        self._request.submit(lambda source: source.park(refused, behind), parked)

    # -- sending and its reports

    def _send(self) -> None:
        if self._force_remark or not self._delivery.takes:
            return
        rows = self.in_flight.admit()
        if self.in_flight.records:
            self._delivery.send(rows, self._term.is_live)
        if rows:
            self.in_flight.withdraw(rows)

    def _take(self, reports: Reports) -> None:
        if reports.acknowledged:
            self._backoff.acked(boot_seconds())
            self._acked.extend(reports.acknowledged)
            if self._in_doubt:  # what was sent again followed what was on the wire
                self._in_doubt.difference_update(reports.acknowledged)
        self._force_remark = self._force_remark or reports.halted
        failed = [failure for failure in reports.failed if not failure.refused]
        if failed:
            self._failed.extend(failure.row for failure in failed)
            self._in_doubt.update(failure.row[0] for failure in failed)
            self._pause_until = boot_seconds() + self._ports.limits.io_error_backoff_seconds
            _log_failures(failed)
        refused = [failure for failure in reports.failed if failure.refused]
        self._refused.extend(failure.row for failure in refused)
        self._in_doubt.difference_update(failure.row[0] for failure in refused)
        for failure in refused:
            if self._parking.refuse(failure.row, failure.reason):
                self._parking.hold(self.in_flight.take_back({failure.row[1:3]}))

    def _lower(self, ids: Sequence[int]) -> None:
        """Free the records' places in the window and lower the barriers of their keys (B4, B5)."""
        if ids:
            self.in_flight.settle(ids)
            self._progress_at = boot_seconds()

    # -- the end

    def _end(self) -> None:
        """Account for every record. An orderly end waits for what is in flight; a fenced one stops it at once."""
        self._ending = True
        self._drop(self.in_flight.drop_pending())
        fenced = self._term.ended is TermEnd.FENCED
        limits = self._ports.limits
        patience_seconds = min(limits.drain_interval_seconds, limits.queue_timeout_seconds)
        deadline = Deadline(0.0 if fenced else patience_seconds)
        abandoned = Reports()
        try:
            while self._may_settle() and not deadline.passed and self._term.ended is not TermEnd.FENCED:
                self._collect()
                self._take(self._delivery.poll(min(self._poll_seconds(), deadline.remaining_seconds)))
                self._ask_last()
        finally:
            # Whatever happened, nothing leaves after this.
            if self.in_flight.records > len(self._acked) + len(self._failed) + len(self._refused):
                self._term.abandoned = True
                abandoned = self._delivery.abandon()
            self._in_doubt.update(failure.row[0] for failure in abandoned.failed)
            self._in_doubt.difference_update(abandoned.acknowledged)
            self.abandoned = len(self._in_doubt)
            self._term.abandoned = bool(self._in_doubt)
        if self.abandoned:
            _log.warning("in_flight_abandoned", extra={"records": self.abandoned, "leader_id": str(self.leader_id)})
        self._acked.extend(abandoned.acknowledged)
        unsent = [*self._failed, *self._refused, *(failure.row for failure in abandoned.failed)]
        self._drop([*ids_of(unsent), *self._parking.ids])
        self._settle_accounts(give_back=self._term.ended is not TermEnd.FENCED)

    def _may_settle(self) -> bool:
        """Tell whether records in flight can still be settled. Refused records that are not parked cannot."""
        stuck = 0 if self._parking.has_work else len(self._refused)
        return self.in_flight.records > stuck

    def _ask_last(self) -> None:
        if self._request.pending:
            return
        if self._request.lost:
            if boot_seconds() >= self._pause_until:
                self._open()
        elif self._failed:
            self._reset()
        elif self._parking.has_work:
            self._park()
        elif self._acked:
            self._fetch(0)

    def _settle_accounts(self, *, give_back: bool) -> None:
        """Purge acknowledged records and, unless fenced, reset those not sent: else the successor marks them."""
        deadline = Deadline(_LAST_ANSWER_SECONDS)
        while not deadline.passed:
            if self._request.pending:
                self._request.wait(deadline.remaining_seconds)
                self._collect()
            elif self._request.lost:
                break
            elif self._acked and self._may_purge():
                self._fetch(0)
            elif self._dropped and give_back:
                self._request.submit(partial(_reset, ids=sorted(self._dropped)))
                self._dropped.clear()
            else:
                break


def _reset(source: ClaimSource, ids: Sequence[int]) -> None:
    source.reset(ids)


def _log_failures(failed: Sequence[Failure]) -> None:
    reasons = deque({failure.reason for failure in failed}, maxlen=3)
    _log.warning("delivery_failed", extra={"records": len(failed), "reasons": sorted(reasons)})
