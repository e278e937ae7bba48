"""Terms: the order of the leaders of each shard, and the reasons why a leader sends a record again.

dual-epoch-append: a record of an old term follows a record of a newer term of its shard. If the delivery is at least
once, this is allowed for records that the old term handed to its client before the newer term began.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import chain

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.log import ObservedLog
from infra.chaos.checker.promise import Promise
from infra.chaos.checker.records import Observation
from infra.chaos.history.events import Acknowledge, CheckpointWrite, MarkEvent, Purge, TermEvent, TransactionStep

_REPORT_SECONDS = 10.0
"""A client may report a failure this long after readers see the records that it sent again because of the failure."""


class ObservedTerms:
    """Stores the beginning of each term, and the times of the failed or unknown answers that the term received."""

    def __init__(self, promise: Promise, findings: Findings) -> None:
        self._promise = promise
        self._findings = findings
        self._terms: dict[str, TermEvent] = {}
        self._doubts: dict[str, list[float]] = defaultdict(list)
        self._failed: dict[str, list[float]] = defaultdict(list)  # by process: its client outlives a term

    def term(self, event: TermEvent) -> None:
        """Process the beginning of a term. The end of a term is ignored, because it does not affect sent records."""
        if event.type == "invoke":
            self._terms.setdefault(event.leader_id, event)

    def answer(self, event: Acknowledge | CheckpointWrite | MarkEvent | Purge | TransactionStep) -> None:
        """Process an answer. A failure or an unknown outcome is a reason to send a record again."""
        if event.type in {"fail", "info"}:
            self._doubts[event.leader_id].append(event.time)
            if isinstance(event, Acknowledge):
                self._failed[event.process].append(event.time)

    def reason(self, copy: Observation, before: Observation) -> str | None:
        """Return the reason why the record in `before` was sent again as `copy`, None if the history has no reason."""
        leader = copy.leader_id
        if leader is None or before.leader_id is None:
            return None
        if leader != before.leader_id:
            return f"term {leader} came after term {before.leader_id}"
        doubts = self._doubts.get(leader, [])
        produced = copy.record.produced_by(leader)
        if not produced:  # the history does not have the times at which the record was handed over
            return f"{leader} was answered with a failure" if doubts else None
        if len(produced) == 1 and copy.recreations > before.recreations:  # in flight when the topic was deleted
            return f"the client of {leader} sent it again, to the topic that was recreated"
        first, last = produced[0].time, produced[-1].time
        at = bisect_left(doubts, first)
        if at < len(doubts) and doubts[at] <= last:
            return f"{leader} was answered with a failure in between"
        failed = self._failed.get(produced[0].process, [])
        at = bisect_left(failed, first)
        if len(produced) == 1 and at < len(failed) and failed[at] <= copy.stamp.time + _REPORT_SECONDS:
            # An idempotent producer that gives up a record restarts its sequence numbers. It then sends unanswered
            # records again under numbers that are new to Kafka (librdkafka's issue 4953). The record that it gave up
            # may be of an earlier term.
            return f"{leader} was answered with a failure meanwhile"
        answers = sum(acknowledged.leader_id == leader for acknowledged in copy.record.acknowledged)
        return f"{leader} had no answer" if len(produced) > answers else None

    def finish(self, log: ObservedLog) -> None:
        """Report records of an old term that follow a record of a newer term."""
        rank = self._rank()
        for partition in log.partitions():
            newest: dict[int, Observation] = {}
            for observation in log.ordered(partition, committed=self._promise.transactional):
                term = self._terms.get(observation.leader_id or "")
                if term is None:
                    continue
                ahead = newest.setdefault(term.shard, observation)
                newer = self._terms[ahead.leader_id or ""]
                if rank[term.leader_id] >= rank[newer.leader_id]:
                    newest[term.shard] = observation
                else:
                    self._behind(observation, ahead, term, newer)

    def _behind(self, observation: Observation, ahead: Observation, term: TermEvent, newer: TermEvent) -> None:
        produced = observation.record.produced_by(term.leader_id)
        in_flight = bool(produced) and produced[-1].time <= newer.time
        self._findings.add(
            "dual-epoch-append",
            f"{observation} is of term {term.leader_id}, behind {ahead} of the newer term {newer.leader_id}"
            + (": it was in flight when that began" if in_flight else ""),
            (term, newer, *produced, ahead.poll(), observation.poll()),
            explained=in_flight and not self._promise.transactional,
        )

    def _rank(self) -> dict[str, tuple[int, float]]:
        """Return the rank of each term in its shard: by epoch if every term of the shard has one, else by time."""
        shards: dict[int, list[TermEvent]] = defaultdict(list)
        for term in self._terms.values():
            shards[term.shard].append(term)
        numbered = {shard: all(term.epoch is not None for term in terms) for shard, terms in shards.items()}
        return {
            term.leader_id: ((term.epoch or 0) if numbered[term.shard] else 0, term.time)
            for term in chain.from_iterable(shards.values())
        }
