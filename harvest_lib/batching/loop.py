"""One term of harvesting in batches: read pages, send their records, commit them with the position after the batch.

    lead (epoch) ─► begin (fences) ─► open (position) ─► read ─► send ─► … ─► commit ─► checkpoint ─┐
                                           ▲               ▲                    │                   │
                                           │               └────────────────────┼───────────────────┘
                                           └── failed: a new leader id, and from the last position that was committed

Promises
- A position passes a record only once the record is in Kafka, parked, or listed as deferred in the checkpoint. After a
  failure, records are sent again from the last committed position.
- Under the key barrier a record is sent only when the previous record of its key is in Kafka *and* a checkpoint on disk
  has passed that record. Later records of the key are deferred; the checkpoint lists their ids.
- A record that can never be sent is parked, by itself or with later records of its key (`parking`). Where Kafka refuses
  a batch without naming the record or its topic, smaller batches are tried until the record is alone. Parked records
  that an operator retries are sent in batches of their own. The checkpoint after such a batch lists the records' ids.
  When this checkpoint is saved, the records are released.
- The loop waits for a topic in trouble, up to a limit (`harvest_lib.delivery.topic_troubles`). During this wait batches
  leave out the topic's records if other topics take records (`paused_records`).
- If records of a failed batch may still arrive in Kafka, visible to readers, the term ends. The next term begins here
  after a session timeout, because these records may arrive until then.
- While Postgres or Kafka is unavailable, or refuses rights to harvest, the loop retries from the last committed
  position.
- After a term is revoked or a stop is requested, nothing more is sent. The loop waits up to `drainInterval` for the
  batch that is on the wire.
- A leader that was fenced, by the epoch or by Kafka, sends nothing more under its term. A leader of a moved
  subscription (rewound, or given an end) continues from the new position within about a second.
"""

import logging
import threading
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import assert_never

from harvest_lib.batching.batch import OpenBatch, PagesStale, RecordRefused
from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.consequence import Restart, Superseded, park, raise_consequence
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.batching.rights import Rights
from harvest_lib.batching.term_checkpoints import TermCheckpoints
from harvest_lib.checkpoints.table import LeadershipStatus
from harvest_lib.clock import boot_seconds
from harvest_lib.delivery import BatchCommitted
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
)
from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.postgres.translation import log_denied
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import Position

_log = logging.getLogger(__name__)

_TAKEN = "a producer that does not lead this subscription has begun under its transactional ids"
_TAKEN_NEXT = (
    "nothing, if this is logged once: a former leader that was frozen causes it, and stops; if it repeats, find the "
    "other pool or program with transactional ids that begin with this `checkpointTopic`, and give either of them "
    "another prefix; after a failover of Postgres, stop the old server, or the harvesters that still reach it"
)


class BatchLoop:
    """Loop that harvests in batches during one term."""

    def __init__(self, term: Term, ports: BatchPorts, stopping: threading.Event) -> None:
        self.leader_id = term.leader_id
        self.idle = False
        """True if the last read found nothing, and nothing was deferred."""
        self.abandoned = 0
        """Number of records whose outcome was unknown when the term ended."""
        self._term = term
        self._ports = ports
        self._stopping = stopping
        self._rights = Rights(term, stopping, ports.limits.drain_interval_seconds)
        self._batch = OpenBatch(ports, self._rights)
        self._checkpoints = TermCheckpoints(ports.store)
        self._is_open = False  # False before the first batch, and after each failure
        self._was_fenced = False

    @property
    def in_flight(self) -> int:
        """Return the number of records sent in this batch. Any thread may call it."""
        return self._batch.in_flight

    @property
    def keys_in_flight(self) -> list[str] | None:
        """Return the keys of the records in flight; None without the key barrier. Any thread may call it."""
        return self._batch.keys

    @property
    def holds_off(self) -> bool:
        """Return True if this process has to wait before its next term, because records on the wire may still arrive or
        the leader was fenced. Read this property after the term has ended."""
        return self._was_fenced or (bool(self.abandoned) and not self._ports.is_exactly_once)

    @property
    def epoch(self) -> int | None:
        """Return the epoch under which this loop led last; None without epochs."""
        return self._checkpoints.epoch

    def run(self) -> None:
        """Harvest until the term ends or a stop is requested. Then abandon the open batch, save the last checkpoint and
        close the source."""
        self._term.quiesced.clear()
        try:
            while self._rights.may_go_on():
                try:
                    with self._ports.translate_errors():
                        self.turn()
                except (DatabaseAccessDenied, KafkaAccessDenied) as error:
                    log_denied(error)
                    self._restart(Restart(reopens=True))
                except (DatabaseUnavailable, KafkaUnavailable) as error:
                    _log.warning("harvest_interrupted", extra={"reason": error.evidence or error.cause})
                    self._restart(Restart(reopens=True))
        finally:
            try:
                self._end()
            finally:
                self._term.quiesced.set()

    def turn(self) -> None:
        """Deliver a batch, or wait a little if there is nothing to deliver. This method alone handles `Restart` and
        `Superseded`: after a batch that was not committed, the term restarts or ends."""
        if self._batch.error is not None:
            raise self._batch.error
        try:
            try:
                self._deliver()
            except Restart as restart:
                self._restart(restart)
        except Superseded as fenced:
            self._fenced(fenced)

    def _deliver(self) -> None:
        """Open the term's source if it is not open, and deliver the next batch. Raises Restart and Superseded."""
        if not self._is_open and not self._open():
            return
        if self._checkpoints.is_check_due:
            self._check_status()
        try:
            self._send_and_commit()
        except RecordRefused as refused:
            park(refused.row, refused.reason, self._ports)
        except PagesStale:
            raise Restart(pause_seconds=0.0) from None

    def _send_and_commit(self) -> None:
        """Send and commit a batch of one of three kinds: retried records, a probe of a paused topic, or new records.

        Raises RecordRefused and PagesStale.
        """
        batch, ports = self._batch, self._ports
        retried = batch.redeliver()
        if retried is not None:
            self._commit(self._checkpoints.position, batch.redelivery.size, full=True, retried=retried)
            return
        if batch.probe():
            self._commit(ports.parking.passed(self._checkpoints.position), batch.paused.size, full=False)
            return
        batch.recheck()
        is_due = batch.is_due or self._checkpoints.is_elsewhere or (batch.caught_up and self._lowest_has_changed)
        filled = batch.fill(ports.parking.passed(self._checkpoints.position) if is_due else None)
        if filled.position is None:
            self._rest()
        else:
            self._commit(filled.position, ports.size, full=filled.more)

    @property
    def _lowest_has_changed(self) -> bool:
        return self._checkpoints.lowest_parked != self._ports.parking.lowest

    # -- the beginning

    def _open(self) -> bool:
        """Fence the previous leader, and open the source at the subscription's checkpoint. Return False if the
        subscription's row changed during the call: the next turn tries again."""
        ports = self._ports
        self._checkpoints.lead(self.leader_id, self._term.after_epoch)
        self._require_lead()  # before a producer is fenced in Kafka
        outcome = ports.delivery.begin(self.leader_id, self._term.is_live)
        if not isinstance(outcome, BatchCommitted):
            raise_consequence(outcome, self._batch, ports, ports.size)
        self._require_lead()  # `begin` may have taken long
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            return False
        self._checkpoints.begin(checkpoint)
        position = ports.source.open(checkpoint.position)
        if self._checkpoints.status() is not LeadershipStatus.LEADS:
            ports.source.close()  # the checkpoint may be older than the change
            return False
        retried = (checkpoint.position or {}).get("retried", ())
        self._checkpoints.position = {name: value for name, value in position.items() if name != "retried"}
        self._checkpoints.lowest_parked = min(retried, default=None)
        self._batch.begin()
        if not ports.parking.begin(retried):
            raise Superseded
        if checkpoint.position is None:
            self._checkpoints.begin_at(self._following(position))
            self._require_saved()
        self._is_open = True
        return True

    def _require_lead(self) -> None:
        """Raise Superseded if another leader leads. If the subscription was moved, close the source, so that the source
        is opened again."""
        status = self._checkpoints.status()
        if status is LeadershipStatus.FENCED:
            raise Superseded
        if status is LeadershipStatus.MOVED:
            self._ports.source.close()

    def _check_status(self) -> None:
        """Check the subscription's row. Raises Restart if the subscription was moved, Superseded if another leader
        leads."""
        match self._checkpoints.status():
            case LeadershipStatus.LEADS:
                return
            case LeadershipStatus.MOVED:
                _log.info("subscription_moved", extra={"leader_id": str(self.leader_id)})
                self.idle = False
                self._checkpoints.save()  # refused if the subscription was rewound
                raise Restart(reopens=True)
            case LeadershipStatus.FENCED:
                raise Superseded
            case other:
                assert_never(other)

    # -- a batch

    def _commit(self, position: Position, size: BatchSize, *, full: bool, retried: Sequence[int] = ()) -> None:
        ports, batch, sent = self._ports, self._batch, self._batch.in_flight
        if not ports.parking.write():
            raise Superseded
        following = self._following({**position, "retried": retried} if retried else position, sent)
        began = boot_seconds()
        outcome = ports.delivery.commit(following, self._rights.may_finish)
        ports.observers.committed(outcome, began)
        if not isinstance(outcome, BatchCommitted):
            raise_consequence(outcome, batch, ports, size, None if retried else position)
        self._checkpoints.last, self._checkpoints.position = following, position
        batch.committed()
        self.idle = False
        ports.source.committed()
        size.done(sent, full=full)
        if sent:
            ports.delivered(sent)
        if retried or self._checkpoints.is_save_due or batch.barrier.is_blocked:
            self._require_saved()
        if retried and not ports.parking.release(retried):
            raise Superseded

    # -- after a batch that was not committed

    def _restart(self, restart: Restart) -> None:
        """Restart the term at the last committed position, under a new leader id. Raises Superseded."""
        position = restart.position
        if restart.reopens:
            self._reopen()
        elif self._is_open and not self._save_or_reopen():
            position = None
        still_led = self._term.may_finish()
        abandoned = self._ports.delivery.abandon()
        is_counted = False
        if not abandoned.may_arrive and position is not None:
            is_counted = self._count_delivered(position, abandoned.failed_keys or ())
        self._ports.observers.abandoned(repeats=not (is_counted or self._ports.is_exactly_once))
        self._batch.abandoned()
        self._is_open = False
        if abandoned.may_arrive:
            # If the records were sent again now, copies on the wire could arrive after later records of their keys.
            _log.warning("records_on_the_wire", extra={"records": self._batch.in_doubt})
            self._term.end(TermEnd.FENCED)
            if still_led:
                with suppress(DatabaseUnavailable, DatabaseAccessDenied):
                    self._ports.source.give_back()
            return
        back_off = self._ports.limits.io_error_backoff_seconds
        self._stopping.wait(back_off if restart.pause_seconds is None else restart.pause_seconds)
        if self._term.is_live():
            self.leader_id = uuid.uuid4()
            self._ports.emit(LeaderRefreshed(leader_id=self.leader_id))

    def _count_delivered(self, position: Position, failed_keys: Collection[bytes]) -> bool:
        """Count the records of a failed batch that are in Kafka as delivered, so that these records are not sent again.
        Defer the failed records. Return False if it is unknown which records failed, or if all records failed."""
        failed = self._batch.failed_ids(failed_keys)
        if not failed:
            return False
        delivered = self._batch.defer_failed(failed)
        self._ports.observers.delivered_except(failed)
        self._checkpoints.last, self._checkpoints.position = self._following(position, delivered), position
        self._ports.source.committed(failed)
        self._ports.delivered(delivered)
        self._save_or_reopen()
        return True

    def _save_or_reopen(self) -> bool:
        """Save the last checkpoint. If the subscription was moved, close the source and return False. Raises
        Superseded."""
        try:
            self._require_saved()
        except Restart:
            self._reopen()
            return False
        return True

    def _reopen(self) -> None:
        self._ports.source.close()
        self._is_open = False

    def _abandon(self) -> None:
        self._ports.delivery.abandon()
        self._ports.observers.abandoned(repeats=not self._ports.is_exactly_once)

    def _fenced(self, fenced: Superseded) -> None:
        if fenced.by_kafka:
            self._log_if_taken(fenced.reason)
        _log.warning("batch_leader_fenced", extra={"leader_id": str(self.leader_id), "reason": fenced.reason})
        self._was_fenced = True
        self._abandon()
        self._term.end(TermEnd.FENCED)

    def _log_if_taken(self, reason: str) -> None:
        """Log an error if the producer that has begun in Kafka does not belong to a leader. A leader would have raised
        the epoch first."""
        with suppress(DatabaseUnavailable, DatabaseAccessDenied):
            if self._checkpoints.status() is not LeadershipStatus.FENCED:
                said = f"{_TAKEN}: Kafka reports {reason!r}, and the subscription's row names this process as leader"
                _log.error(
                    "transactional_id_taken",
                    extra={"leader_id": str(self.leader_id), "reason": said, "next_step": _TAKEN_NEXT},
                )

    # -- checkpoints

    def _following(self, position: Position, delivered: int = 0) -> OutboxCheckpoint:
        """Return the next checkpoint, at `position`, after `delivered` more records."""
        if self._checkpoints.keeps_positions and (deferred_ids := self._batch.deferred_ids):
            position = {**position, "deferred": [*deferred_ids, *position.get("deferred", ())]}
        self._checkpoints.lowest_parked = self._ports.parking.lowest
        low_watermark, hold = self._ports.source.retention_bounds(position)
        needed = [each for each in (hold, self._checkpoints.lowest_parked) if each is not None]
        retention_hold = min(needed, default=None)
        return self._checkpoints.following(
            position, delivered, low_watermark=low_watermark, retention_hold=retention_hold
        )

    def _require_saved(self) -> None:
        """Save the last checkpoint in Postgres if it is not saved yet. Raises Restart or Superseded if Postgres refuses
        the checkpoint."""
        if self._checkpoints.is_saved:
            return
        if not self._checkpoints.save():
            self._check_status()
            raise Restart(reopens=True)  # the row is valid and names this leader
        self._batch.barrier.checkpoint_saved()

    def _rest(self) -> None:
        settled = self._ports.delivery.settle(self._term.is_live)
        if not isinstance(settled, BatchCommitted):
            raise_consequence(settled, self._batch, self._ports, self._ports.size)
        may_look = self._batch.redelivery.may_look
        # A term that has ended has read nothing.
        self.idle = self._rights.may_go_on() and not self._batch.has_deferred and not may_look
        if self._checkpoints.is_save_due:
            self._require_saved()
        if not may_look:
            self._stopping.wait(self._ports.size.pause())

    def _end(self) -> None:
        self.abandoned = self._batch.in_flight + self._batch.in_doubt
        try:
            self._abandon()
            if self._term.may_finish():
                self._settle()
        except Superseded as fenced:
            self._fenced(fenced)
        except (DatabaseUnavailable, DatabaseAccessDenied) as error:
            _log.warning("checkpoint_not_saved", extra={"reason": error.evidence})
        finally:
            self._ports.source.close()
            self._checkpoints.close()
            self._term.abandoned = bool(self.abandoned)
            if self.abandoned and not self._ports.is_exactly_once:
                _log.warning("in_flight_abandoned", extra={"records": self.abandoned, "leader_id": str(self.leader_id)})

    def _settle(self) -> None:
        """Save the last checkpoint, and give back rows that were read but not delivered."""
        with self._ports.translate_errors():
            try:
                if self._is_open:
                    self._save_or_reopen()
            finally:
                self._ports.source.give_back()
