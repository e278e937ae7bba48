"""A partition that a process owns. A thread runs the partition's shard. After each end the shard begins again.

Promises
- The end of a shard is logged, whatever error ended it, including SystemExit, asyncio's CancelledError and a panic in
  an extension. The shard begins again from its checkpoint, with growing pauses, until the partition is revoked.
- While each attempt fails, `stuck_since` is the time of the first failure.
"""

import logging
import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harvest_lib.clock import boot_seconds
from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.consume.room import TURN_SECONDS
from harvest_lib.consume.shard import Fenced, Shard
from harvest_lib.errors import DatabaseUnavailable, HarvestError
from harvest_lib.process import threads

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0
_LONGEST_TURN_SECONDS = 900.0
"""Limit of a turn, even if the shard has committed nothing. It is longer than five failed calls for a message, if each
call takes two minutes."""


class ShardCounts(NamedTuple):
    """Numbers of processed messages, of committed transactions, and of parked messages."""

    messages: int = 0
    transactions: int = 0
    parked: int = 0

    def __add__(self, other: "ShardCounts") -> "ShardCounts":  # type: ignore[override] # sums, not a longer tuple
        return ShardCounts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedShard:
    """State of an owned partition. `offset`: the offset after its last committed transaction; -1 before the first.
    `position`: the first offset that the next owner needs; below 0 before anything was read. `stuck_since`: time, in
    boot seconds, since which a transaction is open or each attempt to run the shard fails; None if neither is true."""

    topic: str
    partition: int
    offset: int
    position: int
    stuck_since: float | None


class Owner(Protocol):
    """The functions of the consumer that an ownership calls, from any thread."""

    session_seconds: float

    def make_shard(self, shard: ShardId) -> Shard:
        """Make the shard of a partition."""
        ...

    def shard_ended(self, ownership: "Ownership", *, for_good: bool = False) -> None:
        """Add the counts of an ownership's ended shard to the totals. `for_good`: the ownership begins no further
        shard."""
        ...

    def no_room(self, ownership: "Ownership", error: BaseException) -> bool:
        """Return True if a shard ended because the database has no connection left for it."""
        ...

    def count_fenced(self) -> None:
        """Count that a shard was fenced."""
        ...


class Ownership:
    """An owned partition. A single thread calls `begin`, `stop` and `await_end`; any thread may call the other
    methods."""

    def __init__(self, owner: Owner, shard: ShardId) -> None:
        self.shard: Shard | None = None
        self.topic = shard.topic
        self._owner, self._id, self._name = owner, shard, str(shard)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._turn = threading.Event()
        self.begin_at = self.began_at = 0.0
        """Two times in boot seconds: when the shard may begin next, and when it began last."""
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._failing_since: float | None = None
        self._position = -1

    @property
    def is_at_work(self) -> bool:
        """Return True if the shard's thread is running."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def opened_at(self) -> float | None:
        """Return the time, in boot seconds, at which the running shard had opened its store. Return None if no shard is
        running or its store is not open yet."""
        shard = self.shard
        return shard.opened_at if shard is not None and self.is_at_work else None

    @property
    def counts(self) -> ShardCounts:
        """Return the counts of the present shard."""
        shard = self.shard
        return ShardCounts(shard.committed, shard.transactions, shard.parked) if shard is not None else ShardCounts()

    @property
    def seen(self) -> OwnedShard:
        """Return the present state of the partition."""
        shard, failing_since = self.shard, self._failing_since
        began = shard.stuck_since if shard is not None else None
        goes_on = shard is not None and _goes_on(shard)
        return OwnedShard(
            topic=self._id.topic,
            partition=self._id.partition,
            offset=shard.offset if shard is not None else -1,
            position=shard.position if shard is not None else self._position,
            stuck_since=began if goes_on else failing_since or began,
        )

    def let_go(self) -> None:
        """Drop the present shard, and remember its position."""
        if self.shard is not None:
            self._position = self.shard.position
        self.shard = None

    @property
    def is_due(self) -> bool:
        """Return True if the shard may begin now. The shard's previous thread has ended then."""
        return not self.is_at_work and not self._stopping.is_set() and boot_seconds() >= self.begin_at

    @property
    def has_had_its_turn(self) -> bool:
        """Return True if the shard has worked long enough to give way to a waiting shard. The time counts from the
        shard's first commit, or from when it had nothing to commit. While a failed message is retried, return False,
        up to a limit."""
        if not self.is_at_work or self._turn.is_set():
            return False
        now, shard = boot_seconds(), self.shard
        if now - self.began_at >= _LONGEST_TURN_SECONDS:
            return True
        if shard is None or shard.going_since is None or shard.is_between_attempts:
            return False
        return now - shard.going_since >= TURN_SECONDS

    def end_turn(self) -> None:
        """End the shard. The shard begins again in its next turn."""
        self._turn.set()

    def begin(self) -> None:
        """Start a thread that runs the shard, if the shard is due."""
        if not self.is_due:
            return
        self._turn, self.began_at = threading.Event(), boot_seconds()
        try:
            self._thread = threads.start(self._name, self._run)
        except RuntimeError as error:  # there is no room for a thread
            self._pause()
            _log.error("shard_failed", extra={"shard": self._name, "reason": str(error)})

    def stop(self) -> None:
        """End the shard for good, without waiting for its end."""
        self._stopping.set()
        self._turn.set()

    def await_end(self, seconds: float) -> None:
        """Wait for the end of the shard. If its thread has not ended after `seconds`, log this and leave the thread."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                _log.warning("shard_left", extra={"shard": self._name, "seconds": seconds})
                return
        self._end()

    # -- the thread

    def _run(self) -> None:
        try:
            if (error := threads.error_of(self._serve)) is not None:
                self._ended_by(error)
            elif self._turn.is_set():
                self._note_if_it_went_on()
                self.begin_at = boot_seconds()
            else:
                self._pause()
                _log.error("shard_failed", extra={"shard": self._name, "reason": "it ended by itself"})
        finally:
            if self._stopping.is_set():
                self._end()
            else:
                self._owner.shard_ended(self)

    def _end(self) -> None:
        """Note that the shard has ended for good. Repeated calls are safe."""
        self._owner.shard_ended(self, for_good=True)
        if not self._has_ended:
            self._has_ended = True
            _log.info("shard_ends", extra={"shard": self._name})

    def _serve(self) -> None:
        _log.info("shard_begins", extra={"shard": self._name})
        self.shard = self._owner.make_shard(self._id)
        if self._stopping.is_set():
            self._turn.set()
        self.shard.run(self._turn)

    def _ended_by(self, error: BaseException) -> None:
        # The next begin is decided before the error is logged, because a log handler may raise.
        if self._owner.no_room(self, error):
            return  # to wait for a turn is no failure; `begin_at` and so the shard's rank in the queue stay the same
        is_fenced = isinstance(error, Fenced)
        self._pause(self._owner.session_seconds if is_fenced else None)
        # If the shard has committed before, a new connection may be enough.
        was_good = isinstance(error, DatabaseUnavailable) and self.shard is not None and self.shard.transactions > 0
        if is_fenced:
            # The other process likely owns the shard. Fence it in turn only if the group still assigns the shard here.
            self._owner.count_fenced()
            _log.warning("shard_fenced", extra={"shard": self._name})
        elif was_good:
            _log.warning("shard_interrupted", extra={"shard": self._name, "reason": str(error)})
        elif isinstance(error, HarvestError):
            _log.error("shard_failed", extra={"shard": self._name, "reason": str(error)})
        else:  # any exception of the user's code; the next attempt starts afresh
            reason = threads.reason_of(error)
            _log.exception("shard_failed", extra={"shard": self._name, "reason": reason}, exc_info=error)

    def _pause(self, seconds: float | None = None) -> None:
        """Decide when the shard begins again: after some seconds, or after a pause that grows with each failure."""
        self._note_if_it_went_on()
        self._failing_since = self._failing_since or boot_seconds()
        self.begin_at = boot_seconds() + (self._pause_seconds if seconds is None else seconds)
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _note_if_it_went_on(self) -> None:
        if self.shard is not None and _goes_on(self.shard):
            self._pause_seconds, self._failing_since = _FIRST_PAUSE_SECONDS, None


def _goes_on(shard: Shard) -> bool:
    """Return True if a shard has committed a transaction since it began, or had nothing to commit."""
    return shard.transactions > 0 or shard.caught_up
