"""The order of each key in each partition, checked in a single pass over the log.

The pass reads a partition by rising offset. An observation is either the first occurrence of its record or a copy of
an earlier occurrence. Below, `R0 R1 R2` are the records of a key in the order of their first occurrences.

First occurrences
    nonmonotonic-send      a record follows a record that was written later, in another write
    int-nonmonotonic-send  a record follows a record that was written later, in the same write
    int-send-skip          records of another write are between the records of a write

Copies, named by their cause
    duplicate-cross-epoch  one term sent the earlier occurrence, and another term sent the copy
    duplicate-adjacent     one term sent both, with no other record of the key between them: `R0 R1 R1`
    duplicate-separated    one term sent both, with other records of the key between them: `R0 R1 R0`

A copy is allowed ("explained") if the history has a reason to send the record again and the delivery permits the copy:

    transactional      no copy is permitted
    barrier            an adjacent copy is permitted: a key never goes back
    pipelined          a repeated run is permitted: it starts at any earlier record, has no gap, and reaches the newest
                       record of its key. `R0 R1 R2 R1 R2` is permitted; `R0 R1 R2 R1` and `R0 R1 R2 R0 R2` are not.
    after a failover   only the new server's backlog may be sent again, once and in order
"""

from collections import defaultdict
from typing import NamedTuple

from infra.chaos.checker.failover_losses import FAILED_OVER, FailoverLosses, SentAgain
from infra.chaos.checker.finding import Anomaly, Findings
from infra.chaos.checker.log import ObservedLog
from infra.chaos.checker.promise import Promise
from infra.chaos.checker.records import Observation, WriteLifecycle
from infra.chaos.checker.terms import ObservedTerms


class _Copy(NamedTuple):
    observation: Observation
    previous: Observation
    anomaly: Anomaly
    reason: str | None
    """The reason why the record was sent again; None if the history has no reason."""


class _KeyState:
    """State of a key in a partition during the pass."""

    __slots__ = ("again", "count", "front", "highest", "last", "last_first", "position", "repeated_run", "writes")

    def __init__(self) -> None:
        self.count = 0
        """Number of first occurrences."""
        self.position = -1
        """Index, among the first occurrences, of the key's last observed record."""
        self.front = -1
        """Index that a repeated run must reach: the index of the newest record, or after a failover the index of the
        last record that the failover caused to be sent again."""
        self.again: dict[float, int] = {}
        """For each failover, by its time: the index of the last record that was sent again because of it."""
        self.highest: Observation | None = None
        """The first occurrence with the highest `seq`."""
        self.last: Observation | None = None
        self.last_first: Observation | None = None
        """The last first occurrence."""
        self.writes: set[WriteLifecycle] = set()
        self.repeated_run: list[_Copy] = []
        """Copies of a pipelined run that has not yet reached `front`. They are judged when the run ends."""


class Sequences:
    """Checks the order of keys and the copies of records.

    A record is not checked if its write failed or it was lost in a failover.
    """

    def __init__(
        self, promise: Promise, terms: ObservedTerms, failover_losses: FailoverLosses, findings: Findings
    ) -> None:
        self._promise = promise
        self._terms = terms
        self._failover_losses = failover_losses
        self._findings = findings

    def finish(self, log: ObservedLog) -> None:
        for partition in log.partitions():
            keys: dict[str, _KeyState] = defaultdict(_KeyState)
            for observation in log.ordered(partition, committed=self._promise.transactional):
                record = observation.record
                if record.write is None or record.write.last.type == "fail" or record.forgotten:
                    continue
                previous, record.latest = record.latest, observation
                if record.key is None:
                    if previous is not None:
                        self._judge_without_key(observation, previous)
                    continue
                key = keys[record.key]
                if previous is None:
                    self._take_first(key, observation)
                else:
                    self._take_copy(key, observation, previous)
                key.last = observation
            for key in keys.values():
                self._end_incomplete_run(key)

    # -- first occurrences

    def _take_first(self, key: _KeyState, observation: Observation) -> None:
        self._end_incomplete_run(key)
        self._check_skip(key, observation)
        self._check_order(key, observation)
        record, highest = observation.record, key.highest
        record.index = key.position = key.front = key.count
        key.count += 1
        key.last_first = observation
        if record.write is not None:
            key.writes.add(record.write)
        if highest is None or highest.record.seq < record.seq:
            key.highest = observation

    def _check_skip(self, key: _KeyState, observation: Observation) -> None:
        record, highest, last = observation.record, key.highest, key.last_first
        if record.write in key.writes and last is not None and last.record.write is not record.write:
            self._findings.add(
                "int-send-skip",
                f"{observation} is of a write whose records of key {record.key} have records of another write between",
                (*record.writes(), last.poll(), observation.poll()),
                explained=highest is not None and highest.record.seq < record.seq,
            )

    def _check_order(self, key: _KeyState, observation: Observation) -> None:
        record, highest = observation.record, key.highest
        if highest is not None and highest.record.seq >= record.seq:
            self._findings.add(
                "int-nonmonotonic-send" if highest.record.write is record.write else "nonmonotonic-send",
                f"{observation} has seq {record.seq} of key {record.key}, behind seq {highest.record.seq} at {highest}",
                (*highest.record.writes(), *record.writes(), highest.poll(), observation.poll()),
            )

    # -- copies

    def _take_copy(self, key: _KeyState, observation: Observation, previous: Observation) -> None:
        record = observation.record
        adjacent = key.last is not None and key.last.record is record
        copy = self._copy_of(observation, previous, adjacent=adjacent)
        again = self._failover_losses.between(observation, previous)
        if again is not None and again.was_known:
            self._end_incomplete_run(key)
            key.position = key.front = record.index
            self._judge_failed_over(copy, again)
        elif again is not None and record.index > key.again.get(again.since, -1):
            key.again[again.since] = record.index
            self._judge_failed_over(copy, again)
            if not key.repeated_run:
                key.front = record.index
            self._go_on(key, record.index)
        elif self._promise.transactional:
            self._forbid(copy, "committed readers are promised none")
        elif previous.partition != observation.partition:
            self._forbid(copy, "in another partition than before")
        elif not self._promise.barrier:
            self._take_pipelined(key, copy)
        elif adjacent:
            self._permit(copy)
        else:
            self._forbid(copy, "the key goes back")

    def _judge_failed_over(self, copy: _Copy, again: SentAgain) -> None:
        """Permit or forbid a copy of a record that was sent before a failover and again after it."""
        if again.was_known:
            self._forbid(copy, "the server that took over in between knew that it was delivered")
        else:
            self._permit(copy._replace(reason=FAILED_OVER))

    def _take_pipelined(self, key: _KeyState, copy: _Copy) -> None:
        """Add a copy to the repeated run of its key, and end the run if the copy reaches `front`."""
        index = copy.observation.record.index
        if index > key.position + 1:
            self._end_incomplete_run(key)
            self._forbid(copy, "the run that repeats has a gap before it")
        else:
            key.repeated_run.append(copy)
        self._go_on(key, index)

    def _go_on(self, key: _KeyState, index: int) -> None:
        """Set the key's position, and permit the copies of its repeated run if the position is `front`."""
        key.position = index
        if index == key.front:
            for repeated in key.repeated_run:
                self._permit(repeated)
            key.repeated_run.clear()

    def _end_incomplete_run(self, key: _KeyState) -> None:
        for copy in key.repeated_run:
            self._forbid(copy, "the run that repeats stops before its end")
        key.repeated_run.clear()

    def _judge_without_key(self, observation: Observation, previous: Observation) -> None:
        """Permit or forbid a copy of a record without a key. Such records have no order."""
        copy = self._copy_of(observation, previous, adjacent=False)
        again = self._failover_losses.between(observation, previous)
        if again is not None:
            self._judge_failed_over(copy, again)
        elif self._promise.transactional:
            self._forbid(copy)
        else:
            self._permit(copy)

    def _copy_of(self, observation: Observation, previous: Observation, *, adjacent: bool) -> _Copy:
        known = observation.leader_id is not None and previous.leader_id is not None
        anomaly: Anomaly = "duplicate-adjacent" if adjacent else "duplicate-separated"
        if known and observation.leader_id != previous.leader_id:
            anomaly = "duplicate-cross-epoch"
        return _Copy(observation, previous, anomaly, self._terms.reason(observation, previous))

    def _permit(self, copy: _Copy) -> None:
        """Report a copy as explained if the history has a reason for it, else as unexplained."""
        self._report(copy, explained=copy.reason is not None)

    def _forbid(self, copy: _Copy, why: str = "") -> None:
        self._report(copy, explained=False, why=why)

    def _report(self, copy: _Copy, *, explained: bool, why: str = "") -> None:
        observation, previous, record = copy.observation, copy.previous, copy.observation.record
        causes = "; ".join(filter(None, (copy.reason or "nothing is known that made it be sent again", why)))
        self._findings.add(
            copy.anomaly,
            f"{record} stands at {previous} and again at {observation}: {causes}",
            (*record.writes(), *record.produced, *record.acknowledged, previous.poll(), observation.poll()),
            explained=explained,
        )
