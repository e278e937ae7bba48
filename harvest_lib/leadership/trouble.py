"""Trouble that keeps a member of the pool from proving that it leads: reported in the log and in its status.

Each kind is logged once, until the member leads; librdkafka tries again by itself, and says the same each time.
"""

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import boot_seconds
from harvest_lib.kafka_client import client_settings

_log = logging.getLogger(__name__)

_FRESH_SECONDS = 30.0
_ANSWER_SECONDS = 2.0

_OF_A_REBALANCE = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._NO_OFFSET,  # noqa: SLF001 - librdkafka's own codes
    KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    KafkaError._DESTROY,  # noqa: SLF001
    KafkaError._PURGE_QUEUE,  # noqa: SLF001
    KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
    KafkaError._STATE,  # noqa: SLF001
}
"""Errors that mean only that the group rebalances, or that the client ends."""


class Trouble:
    """The troubles of one member since it last led. Used by one thread."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}
        self._others: tuple[str, float] | None = None

    def note(self, what: str, error: KafkaError, evidence: str = "") -> None:
        """Take an error of the attempt `what`, with other evidence about it."""
        if error.code() not in _OF_A_REBALANCE:
            reason = "; ".join(part for part in dict.fromkeys((error.str(), evidence)) if part)
            self.say(f"{what}:{error.name()}", f"{what}: {reason} ({error.name()})")

    def say(self, kind: str, reason: str) -> None:
        """Log a trouble, unless one of its kind was logged already."""
        if kind not in self._said:
            _log.warning("election_troubled", extra={"reason": reason})
        self._said[kind] = (reason, boot_seconds())

    def report(self, reason: str) -> None:
        """Take a trouble that is logged elsewhere, and that leading does not end."""
        self._others = (reason, boot_seconds())

    def clear(self) -> None:
        """Forget them: the member leads."""
        self._said.clear()

    @property
    def text(self) -> str:
        """Return the recent troubles, newest first; empty if there are none."""
        all_of_them = [*self._said.values(), *([self._others] if self._others is not None else [])]
        fresh = [(at, reason) for reason, at in all_of_them if boot_seconds() - at < _FRESH_SECONDS]
        return "; ".join(reason for _, reason in sorted(fresh, reverse=True))


def topic_trouble(settings: Mapping[str, object], topic: str, shards: int) -> str:
    """Ask Kafka for trouble with the leader topic; empty if it knows of none."""
    try:
        with AdminClient(client_settings(settings)) as admin:
            found = admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics.get(topic)
    except KafkaException as error:
        return f"the brokers do not say how the leader topic {topic!r} is: {error.args[0].str()}"
    if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
        return (
            f"the leader topic {topic!r} does not exist, or may not be seen: a harvester that starts creates it, if "
            "`createLeaderTopic` is true"
        )
    if found.error is not None:
        return f"the leader topic {topic!r}: {found.error.str()}"
    if missing := [shard for shard in range(shards) if shard not in found.partitions]:
        return f"the leader topic {topic!r} has no partition {missing[0]}: it was recreated with fewer than `shards`"
    if headless := [shard for shard in range(shards) if found.partitions[shard].leader < 0]:
        return (
            f"partition {headless[0]} of the leader topic {topic!r} has no leader: its brokers are down "
            f"(replicas on brokers {', '.join(map(str, found.partitions[headless[0]].replicas))})"
        )
    return ""
