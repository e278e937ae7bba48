"""Topics in trouble: they exist, but take no records now. Pure except for the clock; no I/O.

Harvest lacks the right to write to such a topic, a partition has no leader, or the topic refuses harvest's clock. The
trouble may pass, so harvest waits for the topic:

    blamed ─► paused ─► probed, or named by the brokers ─► over
                 │                    ▲
                 └─► refused for 1 min, then 2, up to 10

Promises
- A topic is *paused* only while another topic takes records: batches leave out the records of a paused topic. A single
  record at a time probes the topic, after 1 s at first and every 5 s in the end. If the brokers name the trouble, they
  are queried instead.
- Time in which no broker answers does not count as waiting.
- A trouble is over when the topic takes a record, or when brokers that named the trouble do not name it any more.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from harvest_lib.clock import boot_seconds

_PATIENCE_SECONDS = 30.0
"""Limit of the wait for a topic in trouble, while another topic takes records."""
_LONGEST_WAIT_SECONDS = 300.0
"""Limit of the wait for a topic that harvest was never allowed to write to, if no other topic is known."""
_GAP_SECONDS = 30.0
"""A trouble that was not seen for this long is over."""
_REFUSE_SECONDS, _LONGEST_REFUSE_SECONDS = 60.0, 600.0
_PROBE_SECONDS, _LONGEST_PROBE_SECONDS = 1.0, 5.0
"""First and longest pause between probes. The pause doubles with each probe, so that slow probes leave time for other
topics."""


@dataclass(slots=True, kw_only=True)
class TopicTrouble:
    """The trouble of one topic: its reason, and the times of its waits and probes. Times are boot seconds."""

    reason: str
    since: float
    seen: float
    refused_until: float = 0.0
    refuse_seconds: float = _REFUSE_SECONDS
    probe_at: float = 0.0
    probe_seconds: float = _PROBE_SECONDS / 2
    at_once: bool = False
    """True if harvest does not wait for the topic."""
    is_named: bool = False
    """True if the brokers named the trouble when they were last queried."""

    def is_refused(self, now: float) -> bool:
        return now < self.refused_until

    def is_past(self, now: float) -> bool:
        return now - max(self.seen, self.refused_until) > _GAP_SECONDS


class Troubles:
    """The topics in trouble. `well` is the set of topics that have ever taken records; its owner adds to it."""

    def __init__(self, well: Set[str]) -> None:
        self._well = well
        self._troubles: dict[str, TopicTrouble] = {}
        self._recovered: dict[str, TopicTrouble] = {}
        self._heard_at = 0.0

    def __contains__(self, topic: object) -> bool:
        return topic in self._troubles

    def __bool__(self) -> bool:
        return bool(self._troubles)

    @property
    def topics(self) -> Set[str]:
        return self._troubles.keys()

    @property
    def paused(self) -> Set[str]:
        """Return the topics whose records should wait while other topics' records are sent; an empty set if no other
        topic takes records."""
        if not self._troubles or self._well <= self._troubles.keys():
            return frozenset()
        now = boot_seconds()
        return {topic for topic, each in self._troubles.items() if not each.is_refused(now) and not each.is_past(now)}

    def refused(self) -> Set[str]:
        """Return the topics whose records are refused now."""
        now = boot_seconds()
        return {topic for topic, trouble in self._troubles.items() if trouble.is_refused(now)}

    def reason(self, topic: str) -> str:
        """Return why a topic is in trouble; an empty string if it is not."""
        trouble = self._troubles.get(topic)
        return trouble.reason if trouble is not None else ""

    def may_probe(self, topic: str) -> bool:
        """Return True if a record for a paused topic should be sent now."""
        trouble = self._troubles.get(topic)
        return trouble is not None and not trouble.is_named and boot_seconds() >= trouble.probe_at

    def blame(self, topic: str, reason: str) -> None:
        """Note that a record for a topic was not taken, for a reason that may pass."""
        now, trouble = boot_seconds(), self._troubles.get(topic)
        if trouble is None or trouble.is_past(now):
            earlier = self._recovered.pop(topic, None)
            trouble = self._troubles[topic] = TopicTrouble(reason=reason, since=now, seen=now)
            if earlier is not None and not earlier.is_past(now):
                trouble.probe_seconds = earlier.probe_seconds
        trouble.reason, trouble.seen = reason, now
        trouble.probe_seconds = min(2 * trouble.probe_seconds, _LONGEST_PROBE_SECONDS)
        trouble.probe_at = now + trouble.probe_seconds

    def deny(self, topic: str, reason: str) -> None:
        """Note that the brokers refuse harvest the right to write to a topic."""
        self.blame(topic, reason)
        trouble = self._troubles[topic]
        trouble.is_named, trouble.at_once = True, topic not in self._well

    def name(self, topic: str, reason: str) -> bool:
        """Note the brokers' reason for a topic's trouble. An empty `reason` ends a trouble that the brokers named
        before. Return True if the topic is in trouble and `reason` is not empty."""
        trouble = self._troubles.get(topic)
        if trouble is None:
            return False
        if reason:
            trouble.reason, trouble.is_named, trouble.seen = reason, True, boot_seconds()
        elif trouble.is_named:
            self._end(topic)
        return bool(reason)

    def took(self, topics: Iterable[str]) -> None:
        """Note that topics took records. A trouble that the brokers name continues: it may concern one partition."""
        for topic in topics:
            if (trouble := self._troubles.get(topic)) is not None and not trouble.is_named:
                self._end(topic)

    def heard(self) -> None:
        """Note that brokers answer again after a silence."""
        self._heard_at = boot_seconds()
        for trouble in self._troubles.values():
            trouble.probe_at = 0.0

    def forget_past(self) -> None:
        """Forget troubles that were not seen for long."""
        now = boot_seconds()
        for topic in [topic for topic, trouble in self._troubles.items() if trouble.is_past(now)]:
            del self._troubles[topic]
        self._recovered = {topic: each for topic, each in self._recovered.items() if not each.is_past(now)}

    def is_due(self, topic: str) -> bool:
        """Return True if harvest has waited long enough for a topic in trouble. This limit applies only while another
        topic takes records."""
        trouble, now = self._troubles[topic], boot_seconds()
        if trouble.seen < trouble.refused_until:
            return False  # the topic has not failed again since it was refused
        waited = now - max(trouble.since, self._heard_at)
        return trouble.at_once or bool(trouble.refused_until) or waited >= _PATIENCE_SECONDS

    def is_overdue(self, topic: str) -> bool:
        """Return True if harvest has waited long enough for a topic, even if no other topic is known."""
        trouble = self._troubles[topic]
        return trouble.at_once and boot_seconds() - trouble.since >= _LONGEST_WAIT_SECONDS

    def refuse(self, topic: str) -> str:
        """Refuse the records of a topic in trouble for a while. Return the reason."""
        trouble = self._troubles[topic]
        trouble.refused_until = boot_seconds() + trouble.refuse_seconds
        trouble.refuse_seconds = min(2 * trouble.refuse_seconds, _LONGEST_REFUSE_SECONDS)
        return trouble.reason

    def _end(self, topic: str) -> None:
        self._recovered[topic] = self._troubles.pop(topic)
