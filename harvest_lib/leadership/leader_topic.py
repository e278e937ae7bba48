"""The leader topic of a NELI pool: creates it when the first harvester starts, and finds trouble with it."""

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.kafka_client import client_settings, topic_partitions
from harvest_lib.kafka_topics import create_topic, topic_missing, topic_too_small

_log = logging.getLogger(__name__)

_CONFIG = {"cleanup.policy": "delete", "retention.ms": "3600000", "segment.ms": "3600000"}
_ANSWER_SECONDS = 2.0


def ensure_leader_topic(settings: Mapping[str, object], topic: str, shards: int, *, may_create: bool) -> None:
    """Create the topic if it is missing. Raises TopicMissing if it may not be created, and TopicTooSmall if it has
    fewer partitions than `shards`."""
    partitions = topic_partitions(settings).get(topic)
    if partitions is None:
        if not may_create:
            raise topic_missing(topic, partitions=shards, evidence="`createLeaderTopic` is false")
        create_topic(settings, topic, partitions=shards, config=_CONFIG)
        _log.info("leader_topic_created", extra={"topic": topic})
    elif partitions < shards:
        raise topic_too_small(topic, partitions=partitions, needed=shards, why="each shard needs one of its own")


def topic_trouble(settings: Mapping[str, object], topic: str, shards: int) -> str:
    """Query Kafka, and return the trouble with the leader topic; an empty string if there is none."""
    try:
        with AdminClient(client_settings(settings)) as admin:
            found = admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics.get(topic)
    except KafkaException as error:
        return f"the brokers do not describe how the leader topic {topic!r} is: {error.args[0].str()}"
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
