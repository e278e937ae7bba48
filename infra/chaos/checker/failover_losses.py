"""Failovers to a server that lacks the newest transactions.

Writes that the new server lacks count as never written. If it lacks a purge or a checkpoint, its backlog has
records that were delivered. Only records in the backlog may be sent again.
"""

from typing import NamedTuple

from infra.chaos.checker.records import Observation, RecordIndex
from infra.chaos.history.events import FailoverLoss, TermEvent

FAILED_OVER = "another server took over, which did not know of it"
"""The reason why a record was sent before a failover and again after it."""


class _Failover(NamedTuple):
    """A failover: the time when the old server ended (`since`), the time of the takeover, and the events of the new
    server's backlog."""

    since: float
    time: float
    backlog: frozenset[str]


class SentAgain(NamedTuple):
    """A record that was sent before a failover and again after it."""

    since: float
    """The time of the last failover before the second send."""
    was_known: bool
    """True if each server that took over between the two sends knew that the record was delivered."""


class FailoverLosses:
    """Stores the failovers, and marks the records that the new server lacks as forgotten."""

    def __init__(self, records: RecordIndex) -> None:
        self._records = records
        self._failovers: list[_Failover] = []
        self._began: dict[str, float] = {}
        """Start times of the terms in the history, by leader id."""

    def term(self, event: TermEvent) -> None:
        """Process an event: the term of a leader began. The first event of a term counts."""
        self._began.setdefault(event.leader_id, event.time)

    def failover(self, event: FailoverLoss) -> None:
        self._failovers.append(_Failover(event.since, event.time, frozenset(event.backlog)))
        for each in event.events:
            self._records.get(each).forgotten = True

    def between(self, copy: Observation, before: Observation) -> SentAgain | None:
        """Return a `SentAgain` if a failover was between the sends of `before` and of `copy`, else None.

        A leader whose term began under the old server may still send records after the failover that it read before.
        """
        first = [produce.time for produce in before.record.produced_by(before.leader_id)]
        again = [produce.time for produce in copy.record.produced_by(copy.leader_id)]
        if not first or not again:
            return None
        began = self._began.get(before.leader_id or "", first[0])
        later = [each for each in self._failovers if each.time <= again[-1]]
        lacking = [each for each in later if copy.record.event in each.backlog]
        if any(began < each.since for each in lacking):
            return SentAgain(later[-1].time, was_known=False)
        return SentAgain(later[-1].time, was_known=True) if any(first[0] < each.time for each in later) else None
