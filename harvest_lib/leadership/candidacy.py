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
"""Heartbeat timeouts after which a candidacy counts as stalled."""


class Candidacy:
    """One shard, as seen by a member. The heartbeat is its own; the other proof, of its membership, is passed in."""

    def __init__(self, shard: int, *, timeout_seconds: float, clock: Callable[[], float]) -> None:
        self.shard = shard
        """The partition of the leader topic too."""
        self.assigned = False
        self.leader_id = uuid.uuid4()
        """The id of its term, if one is to begin."""
        self.position: int | None = None
        """In the partition, once anything was received."""
        self.next_heartbeat = NEVER
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._since = NEVER
        self._heard_at = NEVER
        self._is_told = False

    def begin(self) -> None:
        """Become a candidate under a new id; proofs count from here."""
        self.leader_id = uuid.uuid4()
        self._since = self._clock()
        self._heard_at = NEVER
        self.next_heartbeat = NEVER
        self._is_told = False

    @property
    def heard_at(self) -> float:
        """Return the time at which the newest of its heartbeats that came back was sent."""
        return self._heard_at

    def stalls(self, registry: TermRegistry) -> bool:
        """Return True, once, if it has been assigned its shard for long and could not prove that it leads."""
        waits = self.assigned and self.shard not in registry.terms
        if not waits or self._is_told or self._clock() - self._since < _STALLED_TIMEOUTS * self._timeout_seconds:
            return False
        self._is_told = True
        return True

    def has_stalled(self, registry: TermRegistry) -> bool:
        """Return True if `stalls` has reported it, and it has not led since."""
        return self._is_told and self.assigned and self.shard not in registry.terms

    def heartbeat(self, now: float) -> str:
        """Return a heartbeat that is sent now."""
        return json.dumps({"leader_id": str(self.leader_id), "boot_seconds": now})

    def receive(self, heartbeat: bytes | str | None, offset: int) -> None:
        """Take a message of the partition; only heartbeats of this very candidacy prove anything."""
        if self.position is None:
            self.next_heartbeat = NEVER  # now there is something to commit
        self.position = offset + 1
        try:
            received = json.loads(heartbeat or b"")
            if received["leader_id"] == str(self.leader_id):
                self._heard_at = max(self._heard_at, float(received["boot_seconds"]))
        except (ValueError, TypeError, KeyError):
            return  # someone else's heartbeat, in someone else's format

    def judge(self, registry: TermRegistry, accepted_at: float) -> None:
        """Begin a term, extend or end it. `accepted_at` is when the newest of the accepted commits was sent."""
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
