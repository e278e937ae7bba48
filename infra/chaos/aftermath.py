"""Checks that are made after a run, for promises that the checker of histories does not cover."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from infra.chaos.checker import AnomalyFinding
from infra.chaos.history.events import Poll, TermEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """Data about a fault. `at` is its start by the boot clock, and `leader` the process that led at that time.
    `terms` are all terms of the run, by time. `copies` are the duplicates that the checker found."""

    at: float
    leader: str
    terms: Sequence[TermEvent]
    copies: Sequence[AnomalyFinding]

    @property
    def leader_ids(self) -> Collection[str]:
        """The leader ids of `leader` from the start of the fault on; empty if `leader` did not lead at that time."""
        before = [term for term in self.terms if term.time <= self.at]
        if not before or before[-1].process != self.leader:
            return ()
        since = [term.leader_id for term in self.terms if term.time > self.at and term.process == self.leader]
        return {before[-1].leader_id, *since}


Check = Callable[[Aftermath], str | None]
"""Returns a sentence about the broken promise, None if the promise was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A broken promise. Records may be unaffected: a late failover, for example, breaks a promise too."""

    fault: str
    sentence: str
    evidence: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the broken promise as values that `json.dumps` takes, in the form of a finding."""
        return {
            "name": "promise-broken",
            "explained": False,
            "fault": self.fault,
            "sentence": self.sentence,
            "evidence": self.evidence,
        }


def led_within(seconds: float) -> Check:
    """Return a check that another process leads within `seconds` after a fault was injected into the leader."""

    def check(after: Aftermath) -> str | None:
        if not after.leader_ids:
            return None  # that process did not lead when the fault began
        others = (term for term in after.terms if term.time > after.at and term.process != after.leader)
        following = next(others, None)
        if following is None:
            return f"no harvester led after {after.leader}"
        took = following.time - after.at
        if took > seconds:
            return f"{following.process} led {took:.1f} s after the fault of {after.leader}, not within {seconds:.0f} s"
        return None

    return check


def nothing_repeats(after: Aftermath) -> str | None:
    """Check that no other process sent a record that the leader had sent before."""
    leader_ids = after.leader_ids
    for copy in after.copies:
        first, again = (event.records[0].leader_id for event in copy.events if isinstance(event, Poll))
        if first in leader_ids and again not in leader_ids:
            return f"of what {after.leader} had sent something was sent again: {copy.sentence}"
    return None
