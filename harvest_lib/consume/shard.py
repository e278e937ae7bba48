"""A shard of a consumer: it reads a partition, updates its state, and publishes further messages.

    restore (fence) ─► intents again ─► consume, … ─► flush ─► commit: state, offset, producers, intents
                                          ▲                       │
                                          └── next transaction ◄──┴─► acknowledge, while that already runs

Promises, whatever crashes, freezes or fails over
- Each message changes the committed state once, in a single committed transaction.
- Readers of committed messages see a published message once: it is pending until the transaction is committed, and is
  acknowledged only then.
- All messages of an acknowledgement are in the same transaction.
- A message that the user's function refuses is parked after several attempts, with the reason. No other message is
  parked.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from harvest_lib.clock import boot_seconds
from harvest_lib.consume.attempts import Attempts, FunctionFailed, TrialPassed
from harvest_lib.consume.checkpoint import Checkpoint, ShardId
from harvest_lib.consume.dispatch import Dispatch, OpenTransaction
from harvest_lib.consume.limits import ShardLimits
from harvest_lib.consume.reader import NOTHING_READY
from harvest_lib.consume.store import StateRefused, Store
from harvest_lib.consume.tracing import TransactionSpan
from harvest_lib.consume.transaction import Application, Transaction
from harvest_lib.sequencing.batch import Batch, Message
from harvest_lib.sequencing.message_id import CLOCKS_PER_SECOND, clock_at
from harvest_lib.sequencing.publisher import Publisher, PublishRefused
from harvest_lib.sequencing.sequencer import Sequencer
from harvest_lib.telemetry.harmless import Harmless
from harvest_lib.telemetry.trace_context import configured_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 60.0
_TOUCH_SECONDS = 10.0
_CAUGHT_UP_POLLS = 50
"""Number of polls in a row without a message, of 0.1 s each, after which the shard counts as caught up. A single poll
is no proof, because it may have been too early."""
_SLOW_SECONDS, _LONGEST_STRIDE = 0.1, 64
"""If the messages between two checks of the time took longer than 0.1 s, the time is checked before each message. If
they were faster, the number of messages between two checks doubles, up to 64."""

Reads = Callable[[Sequencer], Generator[Iterable[Message], None, None]]
"""Yields groups of committed messages from the position of a sequencer on; an empty group if no message is ready."""


class Fenced(Exception):
    """Another process owns the shard now. The last transaction was rolled back."""


class Shard:
    """A shard of a consumer. A single thread uses it, but any thread may read its counts."""

    def __init__(
        self,
        application: Application,
        store: Store,
        *,
        shard: ShardId,
        topic_id: str,
        read: Reads,
        publisher: Callable[[], Publisher],
        limits: ShardLimits,
    ) -> None:
        """`publisher` makes a publisher with a new producer id. It is called before the first message is published."""
        self.committed = self.transactions = self.parked = 0
        """Numbers of processed messages, of committed transactions, and of parked messages."""
        self.offset = -1
        """The offset after the last committed transaction, -1 before the first."""
        self.opened_at: float | None = None
        """Time, in boot seconds, at which the store was opened; None before."""
        self.stuck_since: float | None = None
        """Time, in boot seconds, at which the first transaction since the last commit began; None if none has begun."""
        self.caught_up = False
        """True if the shard has reached the end of its partition since it began."""
        self.going_since: float | None = None
        """Time, in boot seconds, at which the shard first committed, caught up, or met an error that passes by itself;
        None before."""
        self._store = store
        self._shard, self._topic_id, self._read, self._make_publisher = shard, topic_id, read, publisher
        self._limits = limits
        self._publisher: Publisher | None = None
        self._checkpoint = Checkpoint(shard=shard, topic_id=topic_id)
        self._attempts = Attempts(limits.max_attempts)
        self._dispatch = Dispatch(application, store, self._attempts)
        self._open: OpenTransaction | None = None
        self._harmless = Harmless(_log, "transaction_not_observed")
        self._tracer: Tracer | None = None
        with self._harmless:
            self._tracer = configured_tracer()
        self._touched_at = self._checked_at = 0.0
        self._stride = 1

    @property
    def position(self) -> int:
        """Return the first offset that the next owner still needs: the offset of the first message that is not
        committed, or of an earlier pending message of a producer that is not forgotten yet. Below 0 before anything was
        read. Any thread may read this property."""
        checkpoint = self._checkpoint
        given_up = clock_at(time.time_ns()) - int(self._limits.prune_after_seconds * CLOCKS_PER_SECOND)
        pending = (each.begin for each in checkpoint.producers if each.begin >= 0 and each.newest >= given_up)
        return min([checkpoint.offset, *pending])

    @property
    def is_between_attempts(self) -> bool:
        """Return True if a failed message is neither committed nor parked yet. A new shard would count the message's
        failures from 0."""
        return self._attempts.is_under_way

    def run(self, stopping: threading.Event) -> None:
        """Own and run the shard until a stop is requested. Then commit the open transaction.

        Raises Fenced if another owner has begun, and errors of the store and of Kafka. After any error, make a new
        shard.
        """
        try:
            self._checkpoint = self._store.restore()
            self.opened_at = boot_seconds()
            self._checkpoint.require(self._shard, self._topic_id)
            self._topic_id = self._topic_id or self._checkpoint.topic_id
            while not stopping.is_set():
                try:
                    self._acknowledge(self._checkpoint)
                    self._flush()
                    self._process(stopping)
                except FunctionFailed as refused:
                    self._end_span("refused")
                    self._store.rollback()  # raises if the store failed, not the function
                    stopping.wait(self._note(refused))
                except Fenced:
                    self._end_span("fenced")
                    raise
                finally:
                    self._end_span("failed")
                    self._forget_pending()
        finally:
            self._store.close()

    # -- transactions

    def _process(self, stopping: threading.Event) -> None:
        sequencer = Sequencer(
            offset=self._checkpoint.offset,
            states=self._checkpoint.producers,
            ring=self._limits.ring,
            ring_bytes=self._limits.ring_bytes,
            last=self._checkpoint.last,
        )
        self._open, quiet_since, idle_polls = None, boot_seconds(), 0
        with closing(self._read(sequencer)) as groups:
            for group in groups:
                idle_polls = idle_polls + 1 if group is NOTHING_READY and self._open is None else 0
                if not self.caught_up and idle_polls >= _CAUGHT_UP_POLLS:
                    self.caught_up = True
                    self._goes()
                self._take(group)
                if self._open is not None:
                    if stopping.is_set() or self._open.is_over(self._limits, is_idle=group is NOTHING_READY):
                        self._finish(self._open, sequencer)
                        quiet_since = boot_seconds()
                    elif self._attempts.one_at_a_time and self._open.taken:
                        self._finish(self._open, sequencer)
                    else:
                        self._touch_if_due()
                elif sequencer.offset > self._checkpoint.offset and (
                    stopping.is_set() or boot_seconds() - quiet_since >= _QUIET_SECONDS
                ):
                    # Only messages without effect were read: save the offset, or retention may overtake it.
                    self._store.begin()
                    self._keep(sequencer)
                    quiet_since = boot_seconds()
                if stopping.is_set():
                    break
        self._flush()

    def _goes(self) -> None:
        self.going_since = self.going_since or boot_seconds()

    def _take(self, group: Iterable[Message]) -> None:
        """Pass the messages of an acknowledgement to the user's functions, in the open transaction or a new one."""
        if self._dispatch.takes_at_once(group):
            self._open = self._open or self._begin()
            self._dispatch.take_at_once(self._open, group)
            return
        if group and isinstance(group, (tuple, Batch)):
            self._open = self._open or self._begin()
            if len(group) <= self._touch_if_due():
                self._dispatch.take(self._open, group)
                return
        messages = iter(group)
        for first in messages:
            self._open = self._open or self._begin()
            self._dispatch.take(self._open, chain((first,), islice(messages, self._touch_if_due() - 1)))

    def _begin(self) -> OpenTransaction:
        transaction = Transaction(shard=self._shard, state=self._store.begin(), publish=self._publish)
        self._touched_at = boot_seconds()
        self.stuck_since = self.stuck_since or self._touched_at
        span = None
        if self._tracer is not None:
            with self._harmless:
                span = TransactionSpan(self._tracer, self._shard, self._harmless)
        return OpenTransaction(transaction, self._touched_at, span)

    def _finish(self, opened: OpenTransaction, sequencer: Sequencer) -> None:
        self._dispatch.finalize(opened)
        try:
            self._keep(sequencer)
        except (PublishRefused, StateRefused) as error:
            raise self._dispatch.refused(error, opened.only, is_anyones=True) from error
        self._attempts.kept()
        opened.end_span()
        self._open = self.stuck_since = None
        self.committed += opened.taken
        self.transactions += 1
        self._goes()
        self.parked += len(opened.parked)
        for offset, reason in opened.parked:
            _log.error("message_parked", extra={**self._log_fields, "offset": offset, "reason": reason})

    def _keep(self, sequencer: Sequencer) -> None:
        self._prune(sequencer)
        checkpoint = Checkpoint(
            shard=self._shard,
            topic_id=self._topic_id,
            offset=sequencer.offset,
            producers=sequencer.states(),
            intents=self._publisher.intents() if self._publisher is not None else (),
            last=sequencer.last,
        )
        if not self._store.commit(checkpoint):
            raise Fenced
        self._checkpoint = checkpoint
        self.offset = checkpoint.offset
        self._acknowledge(checkpoint)

    def _touch_if_due(self) -> int:
        """Touch the store if a touch is due. Return the number of messages until the next call."""
        now = boot_seconds()
        self._stride = 1 if now - self._checked_at > _SLOW_SECONDS else min(2 * self._stride, _LONGEST_STRIDE)
        self._checked_at = now
        if now - self._touched_at >= _TOUCH_SECONDS:
            self._touched_at = now
            self._store.touch()
        return self._stride

    def _prune(self, sequencer: Sequencer) -> None:
        if forgotten := sequencer.prune_older(self._limits.prune_after_seconds, time.time_ns()):
            _log.info("producers_forgotten", extra={**self._log_fields, "count": forgotten})

    # -- failures

    def _end_span(self, error: str) -> None:
        """End the span of a transaction that was not committed, if the span has not ended yet."""
        if self._open is not None:
            self._open.end_span(error)

    def _note(self, refused: FunctionFailed) -> float:
        """Count and log a failure. Return the seconds to wait before the next attempt."""
        if refused.offset is None and not refused.is_anyones and not isinstance(refused, TrialPassed):
            self._goes()
        attempts, pause = self._attempts.failed(refused)
        if not attempts:  # a trial that passed; the search goes on
            return pause
        _log.warning(
            "message_refused" if refused.offset is not None else "transaction_refused",
            extra={**self._log_fields, "offset": refused.offset, "attempt": attempts, "reason": refused.reason},
        )
        return pause

    @property
    def _log_fields(self) -> dict[str, Any]:
        return {"shard": str(self._shard)}

    # -- publishing

    def _publish(self, topic: str, value: bytes | None, **named: Any) -> None:
        about = self._open.about if self._open is not None else None
        self._publishing().publish_uncommitted(topic, value, about=about and about.offset, **named)

    def _publishing(self) -> Publisher:
        if self._publisher is None:
            self._publisher = self._make_publisher()
        return self._publisher

    def _acknowledge(self, checkpoint: Checkpoint) -> None:
        if checkpoint.intents:
            self._publishing().acknowledge(checkpoint.intents)

    def _flush(self) -> None:
        if self._publisher is not None:
            self._publisher.flush()

    def _forget_pending(self) -> None:
        """Close the publisher. Messages that are pending under its producer id are never acknowledged."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
