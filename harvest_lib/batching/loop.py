"""One term of harvesting by laps: read pages, send them, commit them together with the position after them.

    lead (epoch) ─► begin (fences) ─► open (position) ─► read ─► send ─► … ─► commit ─► checkpoint ─┐
                                           ▲               ▲                    │                   │
                                           │               └────────────────────┼───────────────────┘
                                           └── failed: a new leader id, and from the last position that was committed

Promises
- Nothing is passed by a position before it is in Kafka. What is sent again after a failure begins where the last lap
  that was committed ended.
- Where the checkpoint goes along with the lap, into its transaction or before its acknowledgements, it is the one that
  counts. A mirror of it in Postgres, and the checkpoint of all other deliveries, is written at most five times a
  second.
- Under the barrier a record of a key leaves only when the one before is in Kafka *and* passed by a checkpoint that is
  on disk. Later ones of the same lap are put off, and travel in the checkpoint by their ids.
- A record that can never be sent is set aside, by itself or with what follows of its key (`parking`). Where
  Kafka refuses a lap it does not say for which record, or which topic: smaller ones are tried until it is alone. A
  topic in trouble is waited for, but not for good (`harvest_lib.delivery.topics`). What people want sent
  again goes in laps of its own; its ids travel in the checkpoint, and are forgotten once that is kept.
- A lap of which something may still arrive, to be seen by readers, ends the term: what is on the wire has a session
  timeout to arrive before the next one begins here.
- A server that is away, or takes our rights away, Postgres or Kafka, is waited for: it is asked again from the last
  position that was committed.
- A leader that was deposed, by the epoch or by Kafka, sends nothing more under its term. One whose subscription was
  moved (rewound, or told where to stop) goes on from the new place within about a second.
"""

import logging
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from harvest_lib.batching.batch_size import LAP_BYTES, LAP_SECONDS, LARGE_PAGE_BYTES, BatchSize
from harvest_lib.batching.key_barrier import Barrier, KeyBarrier, NoBarrier
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.batching.redelivery import Redelivery
from harvest_lib.checkpoints.table import Checkpoint, LeadershipStatus
from harvest_lib.clock import boot_seconds
from harvest_lib.database import say_denied
from harvest_lib.delivery import BatchCommitted, BatchFailed, BatchFenced, BatchOutcome
from harvest_lib.errors import DatabaseAccessDenied, DatabaseUnavailable, KafkaAccessDenied, KafkaUnavailable
from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.record import Row
from harvest_lib.source import Position

_log = logging.getLogger(__name__)

_SUPERSEDED = "another leader has raised the epoch, or the subscription was removed"
_SAVE_SECONDS = 0.2
"""A checkpoint in Postgres that nothing waits for is written no more often than this."""
_LOOK_SECONDS = 1.0
"""The row of the subscription is looked at this often: somebody may have moved it."""
_SLICE = 500
"""So many records are handed over between two looks at the term."""


class Read(NamedTuple):
    """What became of a page: its bytes, whether all of it went that may go now, and what the source said of it."""

    size: int
    went: bool
    position: Position
    more: bool


@dataclass(slots=True)
class InFlight:
    """What has been sent in this lap; may be read from outside."""

    records: int = 0

    @property
    def keys(self) -> list[str]:
        """Return nothing: laps do not follow keys."""
        return []


class BatchLoop:
    """Harvest by laps under one term."""

    def __init__(self, term: Term, wiring: BatchPorts, stopping: threading.Event) -> None:
        self.leader_id = term.leader_id
        self.in_flight = InFlight()
        self.idle = False
        """True when the last look found nothing, and nothing was put off."""
        self.abandoned = 0
        """How many records were in flight, their fate unknown, when the term ended."""
        self._term = term
        self._wiring = wiring
        self._stopping = stopping
        self._size = BatchSize()
        self._retries = Redelivery(wiring.source, wiring.shelf)
        self._retried = False  # in the last lap
        self._caught_up = False  # since the source was opened: what is set aside does not come from it again
        self._told: int | None = None  # in the last checkpoint: the lowest id that is set aside
        self._gate: Barrier = KeyBarrier() if wiring.one_per_key else NoBarrier()
        self._last: Row | None = None  # of those sent in this lap
        self._was_deposed = self._has_led = self._is_open = False
        self._checkpoint = Checkpoint(generation=0)
        self._position: Position = {}  # the source's, after the last lap that was committed
        self._saved_number = -1
        self._save_at = self._look_at = 0.0
        self._in_doubt = 0  # records of laps that failed since the last that was committed

    @property
    def holds_off(self) -> bool:
        """Tell, at the end, whether what was on the wire may still arrive, or we were deposed."""
        return self._was_deposed or (bool(self.abandoned) and not self._wiring.exactly_once)

    def run(self) -> None:
        """Harvest until the term is over or a stop is asked for; then leave nothing unaccounted for."""
        self._term.quiesced.clear()
        try:
            while self._may_go_on():
                try:
                    with self._wiring.sight():
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
        """Deliver one lap, or wait a little if there is nothing to deliver."""
        if not self._is_open and not self._open():
            return
        if boot_seconds() >= self._look_at and not self._look():
            return
        if self._retry():
            return
        began, size, more, position = boot_seconds(), 0, True, None
        self._gate.is_alone = False
        is_elsewhere = self._checkpoint.kept_in != self._wiring.store.kept_in  # so that others see whose the place is
        if is_elsewhere or self._gate.is_waiting or (self._caught_up and self._told != self._wiring.shelf.lowest):
            position = self._position
        if position is not None and not self._send([]):
            return
        while self._room > 0 and size < LAP_BYTES and boot_seconds() - began < LAP_SECONDS and self._may_read():
            read = self._read_and_send()
            if read is None:
                more = False
                break
            if not read.went:
                return
            size, position, more = size + read.size, read.position, read.more
            if not more or read.size > LARGE_PAGE_BYTES:
                break
        self._caught_up = self._caught_up or not more
        if position is None:
            self._rest()
        else:
            self._commit(position, self._size, full=more)

    @property
    def _room(self) -> int:
        return self._size.records - self.in_flight.records

    def _may_read(self) -> bool:
        may_keep = not self._gate.is_full and not self._wiring.shelf.is_full
        return self._may_go_on() and may_keep and not self._gate.is_alone

    def _may_go_on(self) -> bool:
        return self._term.is_live() and not self._stopping.is_set()

    # -- beginning

    def _open(self) -> bool:
        """Depose whoever led before, and go on from where the subscription stands; False if we were deposed."""
        wiring = self._wiring
        if not self._has_led:
            wiring.store.lead(self.leader_id)
            self._has_led = True
        elif not self._still_leads():
            return False
        self._look_at = boot_seconds() + _LOOK_SECONDS
        outcome = wiring.delivery.begin(self.leader_id)
        if not isinstance(outcome, BatchCommitted):
            self._not_committed(outcome, 0, self._size)
            return False
        if not self._still_leads():  # beginning may have taken long
            return False
        self._checkpoint = wiring.store.stands()
        position = wiring.source.open(self._checkpoint.position)
        if wiring.store.standing() is not LeadershipStatus.LEADS:
            wiring.source.close()  # which of the two it has read is not known
            return False
        self._saved_number = self._checkpoint.number
        self._position = {name: value for name, value in position.items() if name != "retried"}
        self._gate.begin()
        retried = (self._checkpoint.position or {}).get("retried", ())
        self._caught_up, self._told = False, min(retried, default=None)
        if not wiring.shelf.begin(retried):
            self._deposed(_SUPERSEDED)
            return False
        if self._checkpoint.position is None:
            # Wherever later ones go: this one is in Postgres alone until a lap is committed.
            self._checkpoint = replace(self._following(position), kept_in="postgres")
            if not self._save():
                return False
        self._is_open = True
        return True

    def _still_leads(self) -> bool:
        """Tell whether we were not deposed; what is read is found out anew if the subscription was moved."""
        standing = self._wiring.store.standing()
        if standing is LeadershipStatus.DEPOSED:
            self._deposed(_SUPERSEDED)
        elif standing is LeadershipStatus.MOVED:
            self._wiring.source.close()
        return standing is not LeadershipStatus.DEPOSED

    def _look(self) -> bool:
        """Look at the row of the subscription; False if there is no going on from here."""
        self._look_at = boot_seconds() + _LOOK_SECONDS
        match self._wiring.store.standing():
            case LeadershipStatus.LEADS:
                return True
            case LeadershipStatus.MOVED:
                _log.info("subscription_moved", extra={"leader_id": str(self.leader_id)})
                self.idle = False
                self._wiring.store.save(self._checkpoint)  # refused if it was rewound
                self._interrupted()
            case LeadershipStatus.DEPOSED:
                self._deposed(_SUPERSEDED)
            case other:
                assert_never(other)
        return False

    # -- a lap

    def _read_and_send(self) -> "Read | None":
        """Read a page and hand it over; None if there is nothing now. No row of it is kept that has gone: the next
        page, or a broker that is slow, may take as much memory."""
        asked = min(self._size.page, self._room)
        page = self._wiring.source.read(asked)
        if page is None:
            return None
        size = self._size.measured(page.rows, asked)
        shelf = self._wiring.shelf
        rows = shelf.sieve(page.rows, None if self._size.is_doubtful else self._size.largest)
        if shelf.is_stale:
            self._again(pause_seconds=0.0)
            return Read(size, went=False, position=page.position, more=page.more)
        self._gate.alone.update(shelf.suspects(rows, self._size.largest))
        went = self._send(rows)
        return Read(size, went, shelf.passed(page.position), page.more)

    def _send(self, rows: Sequence[Row]) -> bool:
        """Hand over what may go of what was put off and then of `rows`; False if this lap is over, because the client
        refused one, which was set aside."""
        return self._hand_over(self._gate.admit(rows, self._room, first=not self.in_flight.records))

    def _hand_over(self, rows: Sequence[Row]) -> bool:
        for start in range(0, len(rows), _SLICE):
            some = rows[start : start + _SLICE]
            refused = self._wiring.delivery.send(some, self._term.is_live)
            for place, row in enumerate(some) if refused else ():
                if row[0] in refused:
                    self.in_flight.records += place  # they may be on the wire
                    self._park(row, refused[row[0]])
                    return False
            self.in_flight.records += len(some)
        self._last = rows[-1] if rows else self._last
        return True

    def _commit(self, position: Position, lap: BatchSize, *, full: bool, retried: Sequence[int] = ()) -> None:
        wiring, sent = self._wiring, self.in_flight.records
        if not wiring.shelf.write():
            self._deposed(_SUPERSEDED)
            return
        following = self._following({**position, "retried": retried} if retried else position)
        outcome = wiring.delivery.commit(wiring.store.offer(following), self._term.is_live)
        if not isinstance(outcome, BatchCommitted):
            self._not_committed(outcome, sent, lap)
            return
        self._checkpoint = following
        self._last = None
        self.in_flight.records = self._in_doubt = 0
        self.idle = False
        wiring.source.committed(self._gate.put_off)
        self._position = position
        lap.done(sent, full=full)
        if sent:
            wiring.delivered(sent)
        if (retried or boot_seconds() >= self._save_at or self._gate.is_blocked) and not self._save():
            return
        if retried and not wiring.shelf.release(retried):
            self._deposed(_SUPERSEDED)

    def _not_committed(self, outcome: BatchOutcome, sent: int, lap: BatchSize) -> None:
        match outcome:
            case BatchFailed(reason=reason, refused=True) if sent and self._last is not None:
                _log.warning("lap_refused", extra={"records": sent, "reason": reason})
                lap.refused(sent)
                if sent == 1:
                    self._park(self._last, reason)
                else:
                    self._again(pause_seconds=0.0)
            case BatchFailed(reason=reason, unnamed=unnamed):
                _log.warning("lap_failed", extra={"records": sent, "reason": reason})
                if unnamed and sent == 1 and self._last is not None:
                    self._wiring.shelf.blame(self._last, reason)
                elif unnamed and sent:
                    lap.refused(sent)
                self._again()
            case BatchFenced(reason=reason):
                self._deposed(reason)
            case BatchCommitted():
                raise ValueError(outcome)
            case other:
                assert_never(other)

    def _park(self, row: Row, reason: str) -> None:
        """Set a record aside that was refused, and start over without it."""
        if self._wiring.shelf.park(row, reason):
            self._again(pause_seconds=0.0)
        else:
            self._deposed(_SUPERSEDED)

    def _retry(self) -> bool:
        """Send what people want sent again, at most every other lap; False if there is no such lap to be had."""
        self._retried = not self._retried and self._caught_up and self._retries.may_look
        again = self._retries.next(self._gate) if self._retried else None
        if again is None:
            return False
        if self._hand_over(again.rows):
            self._commit(self._position, self._retries.size, full=True, retried=again.ids)
        return True

    def _again(self, pause_seconds: float | None = None) -> None:
        """Start over from the last position that was committed, under a new leader id."""
        if self._is_open and not self._save():
            return
        may_arrive = self._wiring.delivery.abandon()
        self._in_doubt += self.in_flight.records
        self.in_flight.records = 0
        self._is_open = False
        if may_arrive:
            # Sent again now, records of the old lap could arrive behind what follows: a key would step back for good.
            _log.warning("records_on_the_wire", extra={"records": self._in_doubt})
            self._term.end(TermEnd.FENCED)
            return
        self._stopping.wait(self._wiring.limits.io_error_backoff_seconds if pause_seconds is None else pause_seconds)
        if self._term.is_live():
            self.leader_id = uuid.uuid4()
            self._wiring.emit(LeaderRefreshed(leader_id=self.leader_id))

    def _interrupted(self) -> None:
        self._wiring.source.close()
        self._is_open = False
        self._again()

    def _deposed(self, reason: str) -> None:
        _log.warning("leader_deposed", extra={"leader_id": str(self.leader_id), "reason": reason})
        self._was_deposed = True
        self._wiring.delivery.abandon()
        self._term.end(TermEnd.FENCED)

    # -- checkpoints

    def _following(self, position: Position) -> Checkpoint:
        if put_off := self._gate.put_off:
            position = {**position, "deferred": [*put_off, *position.get("deferred", ())]}
        self._told = self._wiring.shelf.lowest
        seen, holds = self._wiring.source.seen(position)
        needed = [each for each in (holds, self._told) if each is not None]
        return Checkpoint(
            generation=self._checkpoint.generation,
            number=self._checkpoint.number + 1,
            position=position,
            delivered=self._checkpoint.delivered + self.in_flight.records,
            seen=seen,
            holds=min(needed, default=None),
            kept_in=self._wiring.store.kept_in,
        )

    def _save(self) -> bool:
        """Write the checkpoint to Postgres, if it is not there; False if that was refused."""
        if self._saved_number == self._checkpoint.number:
            return True
        if not self._wiring.store.save(self._checkpoint):
            if self._look():
                self._interrupted()  # the row says otherwise, and the row is right
            return False
        self._saved_number = self._checkpoint.number
        self._save_at = boot_seconds() + _SAVE_SECONDS
        self._gate.begin_lap()
        return True

    def _rest(self) -> None:
        settled = self._wiring.delivery.settle(self._term.is_live)
        if not isinstance(settled, BatchCommitted):
            self._not_committed(settled, 0, self._size)
            return
        may_look = self._retries.may_look
        # A term that is over has not been looked for anything.
        self.idle = self._may_go_on() and not self._gate.put_off and not may_look
        if boot_seconds() >= self._save_at:
            self._save()
        if not may_look:
            self._stopping.wait(self._size.pause())

    def _end(self) -> None:
        self.abandoned = self.in_flight.records + self._in_doubt
        try:
            self._wiring.delivery.abandon()
            if self._is_open and self._term.ended is not TermEnd.FENCED:
                with self._wiring.sight():
                    self._save()
        except (DatabaseUnavailable, DatabaseAccessDenied) as error:
            _log.warning("checkpoint_not_saved", extra={"reason": error.evidence})
        finally:
            self._wiring.source.close()
            self._wiring.store.close()
            self._term.abandoned = bool(self.abandoned)
