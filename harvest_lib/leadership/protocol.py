"""Protocol of leadership: a term for each shard that is led, and the knowledge of when it is over.

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

    Live until it is ended or until its lease runs out, whichever comes first. The lease is checked before each action,
    against a clock that cannot be stopped, so a frozen process that thaws knows without being notified.
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
        """The epoch of the shard when the term was granted. If another has raised it since, the term is not to begin.
        None where the election does not look at epochs."""
        self.fences = fences
        """True if beginning fences the previous leader, so that there is nothing of it to wait for."""
        self.quiesced = threading.Event()
        """Cleared by the harvester when it begins to act, set once nothing of this term is in flight any more."""
        self.quiesced.set()
        self.abandoned = False
        """Set by the harvester, before `quiesced`, if records in flight may still arrive."""
        self._clock = clock
        self._lease_until = lease_until
        self._end: TermEnd | None = None

    def is_live(self) -> bool:
        """Return True if the holder may act. Cheap: asked before every record."""
        return self._end is None and self._clock() < self._lease_until

    def may_finish(self) -> bool:
        """Return True if records in flight may still land: the term is live, or it was revoked and its lease has not
        run out. Until then a successor waits for `quiesced`."""
        return self._end is not TermEnd.FENCED and self._clock() < self._lease_until

    def extend(self, lease_until: float) -> None:
        """Move the end of the lease; it never moves back, and a lease that ran out stays so."""
        if self.is_live():
            self._lease_until = max(self._lease_until, lease_until)

    def end(self, how: TermEnd) -> None:
        """End the term; the first reason stays."""
        if self._end is None:
            self._end = how

    @property
    def ended(self) -> TermEnd | None:
        """Return why the term is over, or None while it is live. A lease that ran out fences."""
        if self._end is None and self._clock() >= self._lease_until:
            return TermEnd.FENCED
        return self._end


class Leadership(Protocol):
    """A way to agree on a leader for each shard. A single thread calls `start` and `stop`, others call the rest.

    A process may lead several shards, each under a term of its own; the terms end singly or together.
    """

    def start(self) -> None:
        """Begin to stand for election; raises KafkaError or DatabaseError when that is not possible at all."""
        ...

    def term(self, timeout_seconds: float) -> Term | None:
        """Return the live term of this process, of its lowest shard; wait up to `timeout_seconds` for one."""
        ...

    def terms(self, timeout_seconds: float, known: Collection[Term] = ()) -> tuple[Term, ...]:
        """Return the live terms of this process, in order of their shards; at most one for each.

        Waits up to `timeout_seconds` for as long as they equal the `known` terms. A lease that runs out does not end
        the wait: the harvester checks `is_live` of a term when it acts under it.
        """
        ...

    def stop(self, timeout_seconds: float) -> None:
        """Give leadership up, so that another process can have it at once. Safe to repeat."""
        ...
