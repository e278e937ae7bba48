"""Protocol of leadership: an elected process has a term for each shard that it leads, and knows when a term is over.

standby ──elected──► term is live ──revoked (notified in time: land records in flight, then let go)──► standby
                          │
                          └──fenced (no proof of leadership within the heartbeat timeout: stop at once)──► standby
"""

import enum
import math
import threading
from collections.abc import Callable, Collection
from typing import Protocol
from uuid import UUID

from harvest_lib.clock import boot_seconds


class TermEnd(enum.Enum):
    """Why a term is over."""

    REVOKED = "revoked"
    FENCED = "fenced"


class Term:
    """An uninterrupted period of leadership of a shard, identified by a random UUID that is never used again.

    A term is live until it is ended or its lease runs out, whichever comes first. The holder checks the lease before
    each action, against a clock that runs on while the process is frozen. So a process that resumes after a freeze
    knows without a notification whether its term is over.
    """

    def __init__(
        self,
        leader_id: UUID,
        *,
        shard: int = 0,
        lease_until: float = math.inf,
        clock: Callable[[], float] = boot_seconds,
        after_epoch: int | None = None,
        fences: bool = False,
    ) -> None:
        self.leader_id = leader_id
        self.shard = shard
        self.after_epoch = after_epoch
        """The epoch of the shard at the time when the term was granted. If another leader has raised the epoch since
        that time, the term must not begin. None if the election does not read epochs."""
        self.fences = fences
        """True if the begin of the term fences the previous leader, so that no wait for that leader is needed."""
        self.quiesced = threading.Event()
        """The harvester clears this event when it begins to act, and sets the event when no record of the term is in
        flight any more."""
        self.quiesced.set()
        self.abandoned = False
        """The harvester sets this to True, before `quiesced`, if records in flight may still arrive."""
        self._clock = clock
        self._lease_until = lease_until
        self._end: TermEnd | None = None

    def is_live(self) -> bool:
        """Return True if the holder of the term may act. The check is cheap, because it is made before each slice of
        records."""
        return self._end is None and self._clock() < self._lease_until

    def may_finish(self) -> bool:
        """Return True if the holder may wait until records in flight have landed: the term is live, or the term was
        revoked and its lease has not run out. Until the lease runs out, a successor waits for `quiesced`."""
        return self._end is not TermEnd.FENCED and self._clock() < self._lease_until

    def extend(self, lease_until: float) -> None:
        """Move the end of the lease to a later time. It never moves back, and a lease that ran out is not extended."""
        if self.is_live():
            self._lease_until = max(self._lease_until, lease_until)

    def end(self, how: TermEnd) -> None:
        """End the term. If it was ended before, the first reason stays."""
        if self._end is None:
            self._end = how

    @property
    def ended(self) -> TermEnd | None:
        """Return why the term is over; None if the term is live. A lease that ran out counts as FENCED."""
        if self._end is None and self._clock() >= self._lease_until:
            return TermEnd.FENCED
        return self._end


class Leadership(Protocol):
    """Election of a leader for each shard. A single thread calls `start` and `stop`; any thread may call the other
    methods.

    A process may lead several shards, each under a term of its own. The terms end singly or together.
    """

    def start(self) -> None:
        """Begin to stand for election. Raises KafkaError or DatabaseError if this process cannot stand for election."""
        ...

    def term(self, timeout_seconds: float) -> Term | None:
        """Return the live term of the lowest shard that this process leads. Wait for a term up to `timeout_seconds`.
        Return None if this process has no term then."""
        ...

    def terms(self, timeout_seconds: float, known: Collection[Term] = ()) -> tuple[Term, ...]:
        """Return the live terms of this process, in order of their shards, at most one for each shard.

        Wait up to `timeout_seconds` while the live terms equal the `known` terms. A lease that runs out does not end
        the wait. This is safe because the harvester checks `is_live` of a term before it acts under the term.
        """
        ...

    def stop(self, timeout_seconds: float) -> None:
        """Give leadership up, so that another process can lead at once. Repeated calls are safe."""
        ...
