"""One term of harvesting in batches: read pages, send them, commit them together with the position after them.

    lead (epoch) ─► begin (fences) ─► open (position) ─► read ─► send ─► … ─► commit ─► checkpoint ─┐
                                           ▲               ▲                    │                   │
                                           │               └────────────────────┼───────────────────┘
                                           └── failed: a new leader id, and from the last position that was committed

Promises
- Nothing is passed by a position before it is in Kafka. After a failure, records are sent again from the end of the
  last batch that was committed.
- Under the barrier a record of a key leaves only when the one before is in Kafka *and* passed by a checkpoint that is
  on disk. Later ones of the same batch are deferred, and travel in the checkpoint by their ids.
- A record that can never be sent is parked, by itself or with later records of its key (`parking`). Where
  Kafka refuses a batch it does not say for which record, or which topic: smaller ones are tried until it is alone.
  Parked records that an operator retries go in batches of their own; their ids travel in the checkpoint, and are
  forgotten once that is kept.
- A topic in trouble is waited for, but with a limit (`harvest_lib.delivery.topic_troubles`). Batches leave its records
  out meanwhile if other topics take theirs (`paused_records`).
- A batch of which records may still arrive, visible to readers, ends the term: records on the wire have a session
  timeout to arrive before the next term begins here.
- A server that is away, or takes our rights away, Postgres or Kafka, is waited for: it is asked again from the last
  position that was committed.
- A term that is revoked sends nothing more. It waits up to `drainInterval` for the batch that it has sent, and so does
  a stop.
- A leader that was fenced, by the epoch or by Kafka, sends nothing more under its term. One whose subscription was
  moved (rewound, or given an end) goes on from the new place within about a second.
"""

import logging
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

from harvest_lib.batching.batch_size import BATCH_BYTES, BATCH_SECONDS, LARGE_PAGE_BYTES, BatchSize
from harvest_lib.batching.key_barrier import Barrier, KeyBarrier, NoBarrier
from harvest_lib.batching.paused_records import PausedRecords
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.batching.redelivery import Redelivery
from harvest_lib.batching.state import BatchState, Filled, Read
from harvest_lib.batching.term_checkpoints import TermCheckpoints
from harvest_lib.checkpoints.table import Checkpoint, LeadershipStatus
from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.database import say_denied
from harvest_lib.delivery import BatchCommitted, BatchFailed, BatchFenced, BatchOutcome
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
    RecordError,
)
from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.record import Row
from harvest_lib.record.rows import ids_of, keys_of
from harvest_lib.source import Position

_log = logging.getLogger(__name__)

_SUPERSEDED = "another leader has raised the epoch, or the subscription was removed"
_TAKEN = "a producer that does not lead this subscription has begun under its transactional ids"
_TAKEN_NEXT = (
    "nothing, if it comes once: a former leader that was frozen does that, and stops; else see which other pool or "
    "program uses ids that begin with this `checkpointTopic`, and give one of them another; after a failover of "
    "Postgres, stop the old server, or the harvesters that still reach it"
)
_SLICE = 500
"""So many records are handed over between two checks of the term."""


class BatchLoop:
    """Harvest in batches under one term."""

    def __init__(self, term: Term, ports: BatchPorts, stopping: threading.Event) -> None:
        self.leader_id = term.leader_id
        self.in_flight = 0
        """Records that were sent in this batch; may be read from outside."""
        self.idle = False
        """True when the last look found nothing, and nothing was deferred."""
        self.abandoned = 0
        """Records that were in flight, their outcome unknown, when the term ended."""
        self._term = term
        self._ports = ports
        self._stopping = stopping
        self._size = ports.size
        self._barrier: Barrier = KeyBarrier() if ports.one_per_key else NoBarrier()
        self._paused = PausedRecords(ports.troubles, ports.parking, one_per_key=ports.one_per_key)
        self._redelivery = Redelivery(ports.source, ports.parking, ports.troubles, self._paused)
        self._checkpoints = TermCheckpoints(ports.guarantee.store)
        self._state = BatchState()
        self._sent: dict[str, int] = {}  # under the key barrier: the keys of this batch, with the id of each
        self._finish: Deadline | None = None  # of the wait for a batch, at the end

    @property
    def holds_off(self) -> bool:
        """Return True, at the end of the term, if records on the wire may still arrive, or we were fenced."""
        return self._state.was_fenced or (bool(self.abandoned) and not self._ports.guarantee.exactly_once)

    @property
    def epoch(self) -> int | None:
        """Return the epoch under which it led last; None without epochs."""
        return self._checkpoints.epoch

    def run(self) -> None:
        """Harvest until the term is over or a stop is asked for; then leave nothing unaccounted for."""
        self._term.quiesced.clear()
        try:
            while self._may_go_on():
                try:
                    with self._ports.translate_errors():
                        self.turn()
                except (DatabaseAccessDenied, KafkaAccessDenied) as error:
                    say_denied(error)
                    self._interrupted()
                except (DatabaseUnavailable, KafkaUnavailable) as error:
                    _log.warning("harvest_interrupted", extra={"reason": error.evidence or error.cause})
                    self._interrupted()
        finally:
            try:
                self._end()
            finally:
                self._term.quiesced.set()

    def turn(self) -> None:
        """Deliver one batch, or wait a little if there is nothing to deliver."""
        if self._state.error is not None:
            raise self._state.error
        if not self._state.is_open and not self._open():
            return
        if self._checkpoints.is_check_due and not self._check_status():
            return
        if self._redeliver() or self._probe():
            return
        filled = self._fill()
        if filled is None:  # restarted, or fenced
            return
        if filled.position is None:
            self._rest()
        else:
            self._commit(filled.position, self._size, full=filled.more)

    def _fill(self) -> Filled | None:
        """Send deferred rows and then pages, until the batch is full or there is nothing more; None if a record was
        refused, or pages have to be read again."""
        began, size, more, position = boot_seconds(), 0, True, None
        self._barrier.is_isolated = False
        self._paused.recheck()
        if self._ports.parking.is_stale:
            self._restart(pause_seconds=0.0)
            return None
        if self._must_commit():
            position = self._ports.parking.passed(self._state.position)
            if not self._send(self._paused.sift([])):
                return None
        while self._room > 0 and size < BATCH_BYTES and boot_seconds() - began < BATCH_SECONDS and self._may_read():
            read = self._read_and_send()
            if read is None:
                more = False
                break
            if not read.went:
                return None
            size, position, more = size + read.size, read.position, read.more
            if not more or read.size > LARGE_PAGE_BYTES:
                break
        self._state.caught_up = self._state.caught_up or not more
        return Filled(position, more)

    def _must_commit(self) -> bool:
        """Return True if a checkpoint is due though nothing may be read: deferred records may go, or were parked; the
        last one was kept elsewhere and others have to see where it is now; or the lowest parked id has changed."""
        is_changed = self._state.caught_up and self._state.lowest_told != self._ports.parking.lowest
        return self._checkpoints.is_elsewhere or self._barrier.is_waiting or self._paused.is_due or is_changed

    @property
    def _room(self) -> int:
        return self._size.records - self.in_flight

    def _may_read(self) -> bool:
        may_keep = not (self._barrier.is_full or self._paused.is_full or self._ports.parking.is_full)
        return self._may_go_on() and may_keep and not self._barrier.is_isolated

    def _may_finish(self) -> bool:
        """Return True if records that were sent may be waited for: always while it leads, and up to `drainInterval`
        once the term is revoked, for which a successor waits, or a stop is asked for."""
        if self._term.is_live() and not self._stopping.is_set():
            return True
        self._finish = self._finish or Deadline(self._ports.limits.drain_interval_seconds)
        return self._term.may_finish() and not self._finish.passed

    def _may_go_on(self) -> bool:
        return self._term.is_live() and not self._stopping.is_set()

    # -- the beginning

    def _open(self) -> bool:
        """Fence the previous leader, and go on from the subscription's checkpoint; False if we were fenced."""
        ports = self._ports
        self._checkpoints.lead(self.leader_id, self._term.after_epoch)
        if not self._still_leads():  # before we fence anybody in Kafka
            return False
        outcome = ports.guarantee.begin(self.leader_id, self._term.is_live)
        if not isinstance(outcome, BatchCommitted):
            self._not_committed(outcome, 0, self._size)
            return False
        if not self._still_leads():  # beginning may have taken long
            return False
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            return False
        self._checkpoints.begin(checkpoint)
        position = ports.source.open(checkpoint.position)
        if self._checkpoints.status() is not LeadershipStatus.LEADS:
            ports.source.close()  # it is not known which of the two it has read
            return False
        self._state.position = {name: value for name, value in position.items() if name != "retried"}
        self._barrier.begin()
        self._paused.begin()
        self._sent.clear()
        self._state.unsent = ()
        retried = (checkpoint.position or {}).get("retried", ())
        self._state.caught_up, self._state.lowest_told = False, min(retried, default=None)
        if not ports.parking.begin(retried):
            self._fenced(_SUPERSEDED)
            return False
        if checkpoint.position is None:
            self._checkpoints.begin_at(self._following(position))
            if not self._save():
                return False
        self._state.is_open = True
        return True

    def _still_leads(self) -> bool:
        """Return False if we were fenced. If the subscription was moved, the source is closed, to be opened again."""
        status = self._checkpoints.status()
        if status is LeadershipStatus.FENCED:
            self._fenced(_SUPERSEDED)
        elif status is LeadershipStatus.MOVED:
            self._ports.source.close()
        return status is not LeadershipStatus.FENCED

    def _check_status(self) -> bool:
        """Check the row of the subscription; False if there is no going on from here."""
        match self._checkpoints.status():
            case LeadershipStatus.LEADS:
                return True
            case LeadershipStatus.MOVED:
                _log.info("subscription_moved", extra={"leader_id": str(self.leader_id)})
                self.idle = False
                self._checkpoints.save()  # refused if it was rewound
                self._interrupted()
            case LeadershipStatus.FENCED:
                self._fenced(_SUPERSEDED)
            case other:
                assert_never(other)
        return False

    # -- a batch

    def _read_and_send(self) -> Read | None:
        """Read a page and hand it over; None if there is nothing now. No row of it is kept that has gone: the next
        page, or a broker that is slow, may take as much memory."""
        asked = min(self._size.page, self._room)
        page = self._ports.source.read(asked)
        if page is None or not self._may_go_on():
            return None
        size = self._size.measured(page.rows, asked)
        parking = self._ports.parking
        try:
            rows = parking.filter(page.rows, None if self._size.is_doubtful else self._size.largest)
        except RecordError as error:  # the configuration says to stop
            if not self.in_flight:
                raise
            self._state.error = error  # once the batch is committed
            return None
        if parking.is_stale:
            self._restart(pause_seconds=0.0)
            return Read(size, went=False, position=page.position, more=page.more)
        self._barrier.isolated.update(parking.oversized(rows, self._size.largest))
        went = self._send(self._paused.sift(rows))
        return Read(size, went, parking.passed(page.position), page.more)

    def _send(self, rows: Sequence[Row]) -> bool:
        """Hand over the rows that the barrier admits, of the deferred ones and then of `rows`; False if this batch is
        over, because the client refused one, which was parked."""
        runs = ((), rows) if self._barrier.is_waiting else (rows,)  # a page goes as it is where none are before it
        return all(self._hand_over(self._barrier.admit(run, self._room, first=not self.in_flight)) for run in runs)

    def _hand_over(self, rows: Sequence[Row]) -> bool:
        for start in range(0, len(rows), _SLICE):
            if not self._may_go_on():  # the batch ends here, and is committed
                self._state.unsent = [*self._state.unsent, *ids_of(rows[start:])]
                break
            some = rows[start : start + _SLICE]
            refused = self._ports.guarantee.send(some, self._may_finish)
            for place, row in enumerate(some) if refused else ():
                if row[0] in refused:
                    self.in_flight += place  # they may be on the wire
                    self._park(row, refused[row[0]])
                    return False
            self.in_flight += len(some)
            self._ports.source.sent(some)
            if self._ports.one_per_key:
                self._sent.update(zip(keys_of(some), ids_of(some), strict=True))
            self._state.last_sent = some[-1]
        return True

    def _commit(self, position: Position, batch: BatchSize, *, full: bool, retried: Sequence[int] = ()) -> None:
        ports, sent = self._ports, self.in_flight
        if not ports.parking.write():
            self._fenced(_SUPERSEDED)
            return
        following = self._following({**position, "retried": retried} if retried else position, sent)
        outcome = ports.guarantee.commit(following, self._may_finish)
        if not isinstance(outcome, BatchCommitted):
            self._not_committed(outcome, sent, batch, None if retried else position)
            return
        self._checkpoints.last = following
        self._state.last_sent = None
        self.in_flight = self._state.in_doubt = 0
        self._sent.clear()
        self.idle = False
        ports.source.committed()
        self._paused.committed()
        self._state.position = position
        batch.done(sent, full=full)
        if sent:
            ports.delivered(sent)
        if (retried or self._checkpoints.is_save_due or self._barrier.is_blocked) and not self._save():
            return
        if retried and not ports.parking.release(retried):
            self._fenced(_SUPERSEDED)

    def _not_committed(
        self, outcome: BatchOutcome, sent: int, batch: BatchSize, position: Position | None = None
    ) -> None:
        match outcome:
            case BatchFailed(reason=reason, refused=True) if sent and self._state.last_sent is not None:
                _log.warning("batch_refused", extra={"records": sent, "reason": reason})
                batch.refused(sent)
                if sent == 1:
                    self.in_flight = 0  # it is not there
                    self._park(self._state.last_sent, reason)
                else:
                    self._restart(position, pause_seconds=0.0)
            case BatchFailed(reason=reason, unnamed=unnamed):
                _log.warning("batch_failed", extra={"records": sent, "reason": reason})
                if unnamed and sent == 1 and self._state.last_sent is not None:
                    self._ports.parking.blame(self._state.last_sent, reason)
                elif unnamed and sent:
                    batch.refused(sent)
                elif sent:
                    batch.late(sent)
                self._restart(position)
            case BatchFenced(reason=reason):
                self._say_if_taken(reason)
                self._fenced(reason)
            case BatchCommitted():
                raise ValueError(outcome)
            case other:
                assert_never(other)

    def _park(self, row: Row, reason: str) -> None:
        """Park a record that was refused, and start over without it."""
        if self._ports.parking.park(row, reason):
            self._restart(pause_seconds=0.0)
        else:
            self._fenced(_SUPERSEDED)

    def _redeliver(self) -> bool:
        """Send parked records that an operator retried, at most every other batch; False if there are none to send."""
        self._state.was_redelivery = (
            not self._state.was_redelivery and self._state.caught_up and self._redelivery.may_look
        )
        again = self._redelivery.next(self._barrier) if self._state.was_redelivery else None
        if again is None:
            return False
        if self._hand_over(again.rows):
            self._commit(self._state.position, self._redelivery.size, full=True, retried=again.ids)
        return True

    def _probe(self) -> bool:
        """Send one record of a paused topic, alone; False if there is none to send."""
        row = self._paused.probe(self._barrier.defers)
        if row is None:
            return False
        if self._hand_over(self._barrier.pick([row])):
            self._commit(self._ports.parking.passed(self._state.position), self._paused.size, full=False)
        return True

    def _restart(self, position: Position | None = None, *, pause_seconds: float | None = None) -> None:
        """Start over from the last position that was committed, under a new leader id. `position` is the one after the
        batch that failed, if what Kafka has of it counts."""
        if self._state.is_open and not self._save():
            return
        still_led = self._term.may_finish()
        may_arrive = self._ports.guarantee.abandon()
        if not may_arrive and position is not None and (failed := self._failed_ids()):
            self._count_all_but(failed, position)
            if not self._save():
                return
        self._state.in_doubt += self.in_flight
        self.in_flight = 0
        self._state.is_open = False
        if may_arrive:
            # Sent again now, records of the old batch could arrive behind later ones: a key would go back permanently.
            _log.warning("records_on_the_wire", extra={"records": self._state.in_doubt})
            self._term.end(TermEnd.FENCED)
            if still_led:
                with suppress(DatabaseUnavailable, DatabaseAccessDenied):
                    self._ports.source.give_back()
            return
        self._stopping.wait(self._ports.limits.io_error_backoff_seconds if pause_seconds is None else pause_seconds)
        if self._term.is_live():
            self.leader_id = uuid.uuid4()
            self._ports.emit(LeaderRefreshed(leader_id=self.leader_id))

    def _failed_ids(self) -> list[int]:
        """Return the records of a batch that was abandoned which are not in Kafka; none if they are not known, or are
        all. Under the key barrier a key tells its record."""
        keys = {each.decode() for each in self._ports.guarantee.failed_keys or ()}
        failed = [record_id for key, record_id in self._sent.items() if key in keys]
        return failed if len(failed) == len(keys) < self.in_flight else []

    def _count_all_but(self, failed: list[int], position: Position) -> None:
        """Count what Kafka has of a batch that failed, so that it is not sent again; the rest is deferred."""
        delivered, self.in_flight = self.in_flight - len(failed), len(failed)
        self._state.unsent = [*failed, *self._state.unsent]
        self._checkpoints.last = self._following(position, delivered)
        self._state.position = position
        self._ports.source.committed(failed)
        self._ports.delivered(delivered)

    def _interrupted(self) -> None:
        self._ports.source.close()
        self._state.is_open = False
        self._restart()

    def _say_if_taken(self, reason: str) -> None:
        """Log an error if the producer that fenced us in Kafka is not the leader: a leader raises the epoch first."""
        with suppress(DatabaseUnavailable, DatabaseAccessDenied):
            if self._checkpoints.status() is not LeadershipStatus.FENCED:
                said = f"{_TAKEN}: Kafka says {reason!r}, and the subscription's row says that this process leads"
                _log.error(
                    "transactional_id_taken",
                    extra={"leader_id": str(self.leader_id), "reason": said, "next_step": _TAKEN_NEXT},
                )

    def _fenced(self, reason: str) -> None:
        _log.warning("batch_leader_fenced", extra={"leader_id": str(self.leader_id), "reason": reason})
        self._state.was_fenced = True
        self._ports.guarantee.abandon()
        self._term.end(TermEnd.FENCED)

    # -- checkpoints

    def _following(self, position: Position, delivered: int = 0) -> Checkpoint:
        """Return the checkpoint after the last one, at a position after so many more records."""
        if self._checkpoints.keeps_positions and (deferred_ids := self._deferred_ids):
            position = {**position, "deferred": [*deferred_ids, *position.get("deferred", ())]}
        self._state.lowest_told = self._ports.parking.lowest
        seen, holds = self._ports.source.retention_bounds(position)
        needed = [each for each in (holds, self._state.lowest_told) if each is not None]
        return self._checkpoints.following(position, delivered, seen=seen, holds=min(needed, default=None))

    @property
    def _deferred_ids(self) -> list[int]:
        """Return the ids of records that were read and are still to be sent, in order of each key."""
        return [*self._state.unsent, *self._barrier.deferred_ids, *self._paused.ids]

    def _save(self) -> bool:
        """Write the checkpoint to Postgres, if it is not there; False if that was refused."""
        if self._checkpoints.is_saved:
            return True
        if not self._checkpoints.save():
            if self._check_status():
                self._interrupted()  # the row says otherwise, and the row is right
            return False
        self._barrier.checkpoint_saved()
        return True

    def _rest(self) -> None:
        settled = self._ports.guarantee.settle(self._term.is_live)
        if not isinstance(settled, BatchCommitted):
            self._not_committed(settled, 0, self._size)
            return
        may_look = self._redelivery.may_look
        # A term that is over has not been looked for anything.
        has_deferred = self._barrier.has_deferred or bool(self._paused.ids)
        self.idle = self._may_go_on() and not has_deferred and not may_look
        if self._checkpoints.is_save_due:
            self._save()
        if not may_look:
            self._stopping.wait(self._size.pause())

    def _end(self) -> None:
        self.abandoned = self.in_flight + self._state.in_doubt
        try:
            self._ports.guarantee.abandon()
            if self._term.may_finish():
                self._settle()
        except (DatabaseUnavailable, DatabaseAccessDenied) as error:
            _log.warning("checkpoint_not_saved", extra={"reason": error.evidence})
        finally:
            self._ports.source.close()
            self._checkpoints.close()
            self._term.abandoned = bool(self.abandoned)
            if self.abandoned and not self._ports.guarantee.exactly_once:
                _log.warning("in_flight_abandoned", extra={"records": self.abandoned, "leader_id": str(self.leader_id)})

    def _settle(self) -> None:
        """Store the last checkpoint, and give back what was read and is not delivered."""
        with self._ports.translate_errors():
            try:
                if self._state.is_open:
                    self._save()
            finally:
                self._ports.source.give_back()
