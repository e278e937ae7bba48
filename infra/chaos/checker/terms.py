"""Terms: the order of the leaders of each shard, and the reasons for which a leader sends a record again.

dual-epoch-append: a record of an old term stands behind a record of a newer term of its shard. At least once, records
that the old term had handed to its client before the newer term began may still come; later records may not.
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
"""Longest delay of a client's failure report after readers see the records that it sent again because of it."""


class ObservedTerms:
    """Follows terms from their beginning, and the failed or unknown answers that each got."""

    def __init__(self, promise: Promise, findings: Findings) -> None:
        self._promise = promise
        self._findings = findings
        self._terms: dict[str, TermEvent] = {}
        self._doubts: dict[str, list[float]] = defaultdict(list)
        self._failed: dict[str, list[float]] = defaultdict(list)  # by process: its client outlives a term

    def term(self, event: TermEvent) -> None:
        """Note a term's beginning; its end does not concern the records that it has sent."""
        if event.type == "invoke":
            self._terms.setdefault(event.leader_id, event)

    def answer(self, event: Acknowledge | CheckpointWrite | MarkEvent | Purge | TransactionStep) -> None:
        """Take in an answer: a failure or an unknown outcome is a reason to send again."""
        if event.type in {"fail", "info"}:
            self._doubts[event.leader_id].append(event.time)
            if isinstance(event, Acknowledge):
                self._failed[event.process].append(event.time)

    def reason(self, copy: Observation, before: Observation) -> str | None:
        """Return why a record was sent again after `before`: None if nothing is known that explains it."""
        leader = copy.leader_id
        if leader is None or before.leader_id is None:
            return None
        if leader != before.leader_id:
            return f"term {leader} came after term {before.leader_id}"
        doubts = self._doubts.get(leader, [])
        produced = copy.record.produced_by(leader)
        if not produced:  # how often it was handed over was not written down
            return f"{leader} was answered with a failure" if doubts else None
        if len(produced) == 1 and copy.recreations > before.recreations:  # in flight as a topic is deleted
            return f"the client of {leader} sent it again, to the topic that was recreated"
        first, last = produced[0].time, produced[-1].time
        at = bisect_left(doubts, first)
        if at < len(doubts) and doubts[at] <= last:
            return f"{leader} was answered with a failure in between"
        failed = self._failed.get(produced[0].process, [])
        at = bisect_left(failed, first)
        if len(produced) == 1 and at < len(failed) and failed[at] <= copy.stamp.time + _REPORT_SECONDS:
            # An idempotent producer that gives one record up restarts its count. It then sends the unanswered again
            # under a count that Kafka does not know (librdkafka's issue 4953). The record that it gives up may be of an
            # earlier term.
            return f"{leader} was answered with a failure meanwhile"
        answers = sum(acknowledged.leader_id == leader for acknowledged in copy.record.acknowledged)
        return f"{leader} had no answer" if len(produced) > answers else None

    def finish(self, log: ObservedLog) -> None:
        """Find records that an old term has appended behind a newer term's."""
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
        """Return the rank of each term in its shard: by epoch if all its terms have an epoch, else by start time."""
        shards: dict[int, list[TermEvent]] = defaultdict(list)
        for term in self._terms.values():
            shards[term.shard].append(term)
        numbered = {shard: all(term.epoch is not None for term in terms) for shard, terms in shards.items()}
        return {
            term.leader_id: ((term.epoch or 0) if numbered[term.shard] else 0, term.time)
            for term in chain.from_iterable(shards.values())
        }
