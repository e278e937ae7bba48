"""Facts about topics that brokers report: existence, limits, cleanup policies, and reasons why writes fail now."""

from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from harvest_lib.kafka_client import answer_of, topic_settings

ANSWER_SECONDS = 2.0

DEFAULT_BATCH_BYTES = 1_000_000
"""librdkafka's default of `batch.size`, just below the brokers' default of `max.message.bytes`."""


@dataclass(slots=True, kw_only=True)
class Facts:
    """Facts about an existing topic. Facts that harvest may not read have their defaults."""

    limit: int = DEFAULT_BATCH_BYTES
    """The largest size of a batch in bytes (`max.message.bytes`)."""
    is_internal: bool = False
    is_denied: bool = False
    cleanup_policy: str = ""
    trouble: str = ""
    """The reason why the topic takes no records now, or no records of harvest; empty if the topic takes records."""


def ask(admin: AdminClient, topics: Collection[str]) -> dict[str, Facts]:
    """Return the facts about each existing topic among `topics`. Raises KafkaException if no broker answers."""
    answers = admin.describe_topics(
        TopicCollection(sorted(topics)), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
    )
    found: dict[str, Facts] = {}
    least_in_sync: dict[str, int] = {}
    descriptions: dict[str, Any] = {}
    for topic, answer in answers.items():
        described = _described(answer)
        if described is None:
            continue
        found[topic], descriptions[topic] = described
    for topic, settings in topic_settings(admin, found, timeout_seconds=ANSWER_SECONDS).items():
        with suppress(KeyError, TypeError, ValueError):  # the defaults will do
            found[topic].limit = int(settings["max.message.bytes"])
            found[topic].cleanup_policy = settings["cleanup.policy"]
            least_in_sync[topic] = int(settings["min.insync.replicas"])
    for topic, description in descriptions.items():
        found[topic].trouble = found[topic].trouble or _trouble(description, least_in_sync.get(topic, 1))
    return found


def _described(answer: "Future[Any]") -> tuple[Facts, Any] | None:
    """Return the facts about a topic, and its description; None if the topic does not exist."""
    try:
        description = answer_of(answer, 2 * ANSWER_SECONDS)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        if code != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return Facts(is_denied=True, trouble=_denied("Describe")), None
    facts = Facts(is_internal=bool(description.is_internal))
    operations = description.authorized_operations
    if operations is not None and AclOperation.WRITE not in operations:
        facts.is_denied, facts.trouble = True, _denied("Write")
    return facts, description


def _denied(operation: str) -> str:
    return f"harvest may not write to the topic: it needs the permission `{operation}` (`harvest grants kafka`)"


def _trouble(description: Any, least_in_sync: int) -> str:
    if description is None:
        return ""
    for partition in description.partitions:
        if partition.leader is None or partition.leader.id < 0:
            return f"partition {partition.id} of the topic has no leader"
        needed = min(least_in_sync, len(partition.replicas))
        if len(partition.isr) < needed:
            return f"partition {partition.id} of the topic has {len(partition.isr)} in-sync replicas, of {needed}"
    return ""
