"""Proofs that a member of the group leads a shard, and the lease of its term. No I/O.

not assigned ──assigned──► candidate ──both proofs──► leader ──no fresh proofs──► fenced, candidate again
     ▲                         │                         │
     └─────────── revoked or lost ───────────────────────┘
"""

import json
import uuid
from collections.abc import Callable

from harvest_lib.leadership.protocol import Term, TermEnd
from harvest_lib.leadership.term_registry import TermRegistry

NEVER = float("-inf")

_STALLED_TIMEOUTS = 2
"""Number of heartbeat timeouts after which a candidacy counts as stalled."""


class Candidacy:
    """The candidacy of a member for one shard. It checks the proof by heartbeat. The caller passes in the proof of
    membership."""

    def __init__(self, shard: int, *, timeout_seconds: float, clock: Callable[[], float]) -> None:
        self.shard = shard
        """The number of the shard and of its partition in the leader topic."""
        self.assigned = False
        self.leader_id = uuid.uuid4()
        """The id of the present term; if no term has begun yet, the id of the next term."""
        self.position: int | None = None
        """The next offset to read in the partition; None before a message was received."""
        self.next_heartbeat = NEVER
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._since = NEVER
        self._heard_at = NEVER
        self._is_told = False

    def begin(self) -> None:
        """Become a candidate under a new id. Earlier proofs do not count."""
        self.leader_id = uuid.uuid4()
        self._since = self._clock()
        self._heard_at = NEVER
        self.next_heartbeat = NEVER
        self._is_told = False

    @property
    def heard_at(self) -> float:
        """Return the time at which the newest received heartbeat of this candidacy was sent."""
        return self._heard_at

    def stalls(self, registry: TermRegistry) -> bool:
        """Return True if the shard was assigned to this member long ago and the proofs to lead the shard are still
        missing. Return True only once per candidacy."""
        waits = self.assigned and self.shard not in registry.terms
        if not waits or self._is_told or self._clock() - self._since < _STALLED_TIMEOUTS * self._timeout_seconds:
            return False
        self._is_told = True
        return True

    def has_stalled(self, registry: TermRegistry) -> bool:
        """Return True if `stalls` has returned True for this candidacy, and the member does not lead the shard yet."""
        return self._is_told and self.assigned and self.shard not in registry.terms

    def heartbeat(self, now: float) -> str:
        """Return the text of a heartbeat that is sent at the time `now`, in boot seconds."""
        return json.dumps({"leader_id": str(self.leader_id), "boot_seconds": now})

    def receive(self, heartbeat: bytes | str | None, offset: int) -> None:
        """Note a message of the partition. Only a heartbeat of this very candidacy is a proof."""
        if self.position is None:
            self.next_heartbeat = NEVER  # there is a position to commit now; commits are sent with heartbeats
        self.position = offset + 1
        try:
            received = json.loads(heartbeat or b"")
            if received["leader_id"] == str(self.leader_id):
                self._heard_at = max(self._heard_at, float(received["boot_seconds"]))
        except (ValueError, TypeError, KeyError):
            return  # someone else's heartbeat, in someone else's format

    def judge(self, registry: TermRegistry, accepted_at: float) -> None:
        """Begin, extend or end the term of the shard. `accepted_at` is the time at which the newest accepted commit was
        sent."""
        proved_until = min(self._heard_at, accepted_at) + self._timeout_seconds
        term = registry.terms.get(self.shard)
        if term is not None:
            term.extend(proved_until)
            if not term.is_live():
                registry.vacate(TermEnd.FENCED, [self.shard])
                if self.assigned:
                    self.begin()
        elif self.assigned and accepted_at >= self._since and proved_until > self._clock():
            registry.take(Term(self.leader_id, shard=self.shard, lease_until=proved_until, clock=self._clock))
