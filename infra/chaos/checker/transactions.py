"""Transactions in Kafka: committed readers see all records of a transaction or none, and none before the commit.

torn-transaction   committed readers saw some records of a transaction, but never the others
precommitted-read  a committed reader got a record, although its leader had requested no commit after the send
aborted-read       a committed reader got a record of an aborted transaction

A record belongs to the transaction that its leader has open when the leader sends the record. If the leader has several
open transactions, or sends the record more than once, the transaction of the record is unknown and is not checked.
"""

from bisect import bisect_left
from collections import defaultdict

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.records import Observation, RecordLifecycle
from infra.chaos.history.events import Acknowledge, Event, Poll, Produce, TransactionStep


class _TransactionLifecycle:
    __slots__ = ("begun", "ended", "leader_id", "outcome", "records")

    def __init__(self, begun: TransactionStep) -> None:
        self.begun = begun
        self.leader_id = begun.leader_id
        self.ended: TransactionStep | None = None
        self.outcome = "open"
        """`open`, `asked` (the commit was requested and its result is unknown), `committed` or `aborted`."""
        self.records: list[RecordLifecycle] = []


class Transactions:
    """Follows the transactions of each transactional id."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._lifecycles: list[_TransactionLifecycle] = []
        self._current: dict[str, _TransactionLifecycle] = {}
        self._open: dict[str, list[_TransactionLifecycle]] = defaultdict(list)
        self._asked: dict[str, float] = {}
        """Time of each leader's last request to commit, by leader id."""
        self._ends: dict[str, list[tuple[float, str]]] = defaultdict(list)
        """Times and steps of each leader's requests to end a transaction. The step is `fail` for a failed commit."""

    def transaction(self, event: TransactionStep) -> None:
        current = self._current.get(event.transactional_id)
        if event.step == "begin":
            if event.type == "invoke" or (event.type == "ok" and (current is None or current.outcome != "open")):
                self._begin(event, current)
            return
        ends = self._ends[event.leader_id]
        if event.type == "invoke":
            ends.append((event.time, event.step))
            if event.step == "commit":
                self._asked[event.leader_id] = event.time
        elif event.type == "fail" and event.step == "commit" and ends:
            ends[-1] = (ends[-1][0], "fail")
        if current is None or current.leader_id != event.leader_id:
            return
        current.ended = event
        self._close(current)
        if event.step == "abort":
            current.outcome = "aborted" if event.type == "ok" or current.outcome == "open" else current.outcome
        else:
            current.outcome = "committed" if event.type == "ok" else "asked"

    def _begin(self, event: TransactionStep, before: _TransactionLifecycle | None) -> None:
        if before is not None:
            self._close(before)
        lifecycle = self._current[event.transactional_id] = _TransactionLifecycle(event)
        self._lifecycles.append(lifecycle)
        self._open[event.leader_id].append(lifecycle)

    def _close(self, lifecycle: _TransactionLifecycle) -> None:
        opened = self._open[lifecycle.leader_id]
        if lifecycle in opened:
            opened.remove(lifecycle)

    def produce(self, event: Produce, record: RecordLifecycle) -> None:
        opened = self._open.get(event.leader_id)
        if opened is not None and len(opened) == 1:
            opened[0].records.append(record)

    def may_be_committed(self, acknowledged: Acknowledge) -> bool:
        """Return True if the leader has requested a commit after this acknowledgement."""
        return self._asked.get(acknowledged.leader_id, float("-inf")) >= acknowledged.time

    def ends_in_commit(self, acknowledged: Acknowledge) -> bool:
        """Return True if the leader's next request after this acknowledgement was a commit that did not fail. Call it
        only at the end of the history."""
        ends = self._ends.get(acknowledged.leader_id, [])
        at = bisect_left(ends, (acknowledged.time, ""))
        return at < len(ends) and ends[at][1] == "commit"

    def seen(self, observation: Observation, event: Poll) -> None:
        """Process the first read of a record by a committed reader, at the time of the read."""
        leader = observation.leader_id
        opened = self._open.get(leader) if leader is not None else None
        if not opened:
            return
        produced = observation.record.produced_by(leader)
        if produced and self._asked.get(opened[0].leader_id, float("-inf")) < produced[0].time:
            self._findings.add(
                "precommitted-read",
                f"{event.process} read {observation} before {leader} asked for the commit of any transaction with it",
                (*(lifecycle.begun for lifecycle in opened), produced[0], observation.poll()),
            )

    def finish(self) -> None:
        """Compare the outcome of each transaction with its records that were seen."""
        for lifecycle in self._lifecycles:
            sent = [record for record in lifecycle.records if len(record.produced_by(lifecycle.leader_id)) == 1]
            shown = [(record, _seen(record, lifecycle.leader_id)) for record in sent]
            seen = [observation for _, observation in shown if observation is not None]
            missing = [record for record, observation in shown if observation is None and not record.gone]
            steps: list[Event] = [lifecycle.begun, *([lifecycle.ended] if lifecycle.ended else [])]
            if lifecycle.outcome == "aborted":
                for observation in seen:
                    self._findings.add(
                        "aborted-read",
                        f"committed readers see {observation}, of an aborted transaction of {lifecycle.leader_id}",
                        (*steps, *observation.record.produced, observation.poll()),
                    )
            elif seen and missing:
                self._findings.add(
                    "torn-transaction",
                    f"of a transaction of {lifecycle.begun.transactional_id} committed readers saw {len(seen)} records "
                    f"and not the other {len(missing)}, among them {missing[0]}",
                    (*steps, seen[0].poll(), *missing[0].writes(), *missing[0].produced),
                )


def _seen(record: RecordLifecycle, leader_id: str) -> Observation | None:
    """Return the place where a committed reader saw the record from this leader, None if there is no such place."""
    return next((s for s in record.observations if s.committed and s.leader_id == leader_id), None)
