"""Transactions in Kafka: all of one is seen or nothing, and not before it is committed.

torn-transaction: some of its records were seen by committed readers, others never. precommitted-read: a committed
reader got a record before its leader had asked for any commit since it sent it. aborted-read: it got one of an aborted
transaction. A record belongs to the one transaction its leader has open; a leader that has several open at once, or has
sent a record in several, leaves that record's transaction unknown, and nothing is concluded.
"""

from bisect import bisect_left
from collections import defaultdict

from harvest_lib.audit.checker.finding import Findings
from harvest_lib.audit.checker.records import Record, Sighting
from harvest_lib.audit.history import Acknowledge, Event, Poll, Produce, Transaction


class _Story:
    __slots__ = ("begun", "ended", "leader_id", "outcome", "records")

    def __init__(self, begun: Transaction) -> None:
        self.begun = begun
        self.leader_id = begun.leader_id
        self.ended: Transaction | None = None
        self.outcome = "open"
        """open, asked (to be committed, nobody knows), committed or aborted."""
        self.records: list[Record] = []


class Transactions:
    """Follows the transactions of each transactional id."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._stories: list[_Story] = []
        self._current: dict[str, _Story] = {}
        self._open: dict[str, list[_Story]] = defaultdict(list)
        self._asked: dict[str, float] = {}
        """When a leader has last asked for a commit."""
        self._ends: dict[str, list[tuple[float, str]]] = defaultdict(list)
        """When a leader has asked for which end; `fail` stands for a commit that failed."""

    def transaction(self, event: Transaction) -> None:
        """Take in a step."""
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

    def _begin(self, event: Transaction, before: _Story | None) -> None:
        if before is not None:
            self._close(before)
        story = self._current[event.transactional_id] = _Story(event)
        self._stories.append(story)
        self._open[event.leader_id].append(story)

    def _close(self, story: _Story) -> None:
        opened = self._open[story.leader_id]
        if story in opened:
            opened.remove(story)

    def produce(self, event: Produce, record: Record) -> None:
        """Take in a record that is sent."""
        opened = self._open.get(event.leader_id)
        if opened is not None and len(opened) == 1:
            opened[0].records.append(record)

    def may_be_committed(self, acknowledged: Acknowledge) -> bool:
        """Return whether its leader has asked for a commit since."""
        return self._asked.get(acknowledged.leader_id, float("-inf")) >= acknowledged.time

    def ends_in_commit(self, acknowledged: Acknowledge) -> bool:
        """Return whether what its leader asked for next is a commit, and none that failed. To be asked at the end."""
        ends = self._ends.get(acknowledged.leader_id, [])
        at = bisect_left(ends, (acknowledged.time, ""))
        return at < len(ends) and ends[at][1] == "commit"

    def seen(self, sighting: Sighting, event: Poll) -> None:
        """Take in that a committed reader has seen a record, right now."""
        leader = sighting.leader_id
        opened = self._open.get(leader) if leader is not None else None
        if not opened:
            return
        produced = sighting.record.produced_by(leader)
        if produced and self._asked.get(opened[0].leader_id, float("-inf")) < produced[0].time:
            self._findings.add(
                "precommitted-read",
                f"{event.process} read {sighting} before {leader} asked for the commit of any transaction with it",
                (*(story.begun for story in opened), produced[0], sighting.poll()),
            )

    def finish(self) -> None:
        """Compare what was seen of each transaction with how it ended."""
        for story in self._stories:
            told = [record for record in story.records if len(record.produced_by(story.leader_id)) == 1]
            shown = [(record, _seen(record, story.leader_id)) for record in told]
            seen = [sighting for _, sighting in shown if sighting is not None]
            missing = [record for record, sighting in shown if sighting is None and not record.gone]
            steps: list[Event] = [story.begun, *([story.ended] if story.ended else [])]
            if story.outcome == "aborted":
                for sighting in seen:
                    self._findings.add(
                        "aborted-read",
                        f"committed readers see {sighting}, of an aborted transaction of {story.leader_id}",
                        (*steps, *sighting.record.produced, sighting.poll()),
                    )
            elif seen and missing:
                self._findings.add(
                    "torn-transaction",
                    f"of a transaction of {story.begun.transactional_id} committed readers saw {len(seen)} records "
                    f"and not the other {len(missing)}, among them {missing[0]}",
                    (*steps, seen[0].poll(), *missing[0].writes(), *missing[0].produced),
                )


def _seen(record: Record, leader_id: str) -> Sighting | None:
    """Return where a committed reader saw what this leader sent."""
    return next((s for s in record.sightings if s.committed and s.leader_id == leader_id), None)
