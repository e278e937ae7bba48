"""The checkpoint topic in Kafka: a shard's checkpoint is the last committed record of the shard's partition.

The topic is compacted. It has a separate partition for each shard, because a consumer of committed records stops at the
first open transaction of a partition. In a shared partition, the open transaction of another shard would hide a
checkpoint. `harvest_lib.checkpoints.choice` chooses between the checkpoint in Kafka and its mirror in Postgres.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from harvest_lib.clock import Deadline
from harvest_lib.delivery.errors import NO_TOPIC
from harvest_lib.errors import KafkaUnavailable
from harvest_lib.kafka_client import (
    KafkaConsumerProvider,
    answer_of,
    client_settings,
    log_range,
    refused_settings,
    topic_partitions,
    translate,
)
from harvest_lib.kafka_topics import create_topic, topic_missing, topic_too_small
from harvest_lib.record.checkpoint import OutboxCheckpoint

COMPACTED = {"cleanup.policy": "compact"}
_CONFIG = {**COMPACTED, "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
_READ_SECONDS = 5.0
"""Timeout of a request to Kafka. A stop waits for the current request. A request that times out is repeated."""
_MAKE_SECONDS = 30.0
"""Longest time to create the topic. Shards that start together all add partitions. In a busy cluster, new partitions
appear gradually."""
_POLL_SECONDS = 0.2
_FIRST_STEP = 100


def ensure_checkpoint_topic(settings: Mapping[str, object], topic: str, partitions: int) -> None:
    """Create the topic, or add the partitions that it lacks. Other shards may do the same at the same time.

    Raises TopicMissing or KafkaUnavailable. Raises TopicTooSmall if partitions are still missing after 30 s.
    """
    deadline = Deadline(_MAKE_SECONDS)
    while (present := topic_partitions(settings).get(topic, 0)) < partitions:
        if deadline.passed:
            raise topic_too_small(topic, partitions=present, needed=partitions, why="a checkpoint for each shard")
        if not present:
            create_topic(settings, topic, partitions=partitions, config=_CONFIG)
            continue
        try:
            with AdminClient(client_settings(settings)) as admin:
                admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_READ_SECONDS)
        except TimeoutError:
            continue
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_PARTITIONS:  # the code if enough partitions exist by now
                raise translate(error.args[0], settings=settings) from error


def known_to_controller(settings: Mapping[str, object], topic: str) -> bool | None:
    """Return True if the controller has a topic, False if it does not, and None if the controller's answer does not
    show this, for example because this user may not create the topic. A broker that has just restarted may not have the
    topic yet. The query is a validate-only creation, which changes nothing."""
    with AdminClient(client_settings(settings)) as admin:
        asked = admin.create_topics([NewTopic(topic)], validate_only=True, request_timeout=_READ_SECONDS)
        try:
            answer_of(asked[topic], 2 * _READ_SECONDS)
        except KafkaException as error:
            return True if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS else None
    return False


def removes_checkpoints(cleanup_policy: str) -> bool:
    """Return True if a topic with this `cleanup.policy` loses even its last checkpoint, by age or size."""
    return "delete" in cleanup_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A record of the checkpoint topic: its offset and content. `trouble` is the reason why it is not a valid
    checkpoint, or empty."""

    offset: int
    record: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""


def read_checkpoints(
    settings: Mapping[str, object],
    topic: str,
    partition: int,
    key: str,
    provider: KafkaConsumerProvider = Consumer,
    *,
    judge: Callable[[Mapping[str, Any]], str] = lambda _record: "",
    to_sound: bool = False,
    hear_other: Callable[[Mapping[str, Any]], None] = lambda _record: None,
) -> Sequence[TopicRecord]:
    """Return the last committed record with the key, in a list. With `to_sound`, return all records with the key from
    the last record back to the latest valid checkpoint, newest first. Return an empty list if there is no such record.

    `judge` returns the fault of a checkpoint, or an empty text. `hear_other` is called with the checkpoints of other
    keys that follow the last record with the key. The partition is read backwards in steps. Raises TopicMissing if the
    partition does not exist, or KafkaUnavailable.
    """
    consumer = _reader(settings, topic, "read_committed", provider)
    deadline, step = Deadline(_READ_SECONDS), _FIRST_STEP
    try:
        low, high = log_range(consumer, topic, partition, timeout_seconds=_READ_SECONDS)
        start = high
        while start > low:
            start = max(low, high - step)
            step *= 10
            messages, others = _from(consumer, TopicPartition(topic, partition, start), key, deadline)
            for other in others:
                if not (heard := _found(other, lambda _record: "")).trouble:
                    hear_other(heard.record)
            found = [_found(message, judge) for message in reversed(messages)]
            if found and not to_sound:
                return found[:1]
            if sound := [number for number, each in enumerate(found) if not each.trouble]:
                return found[: sound[0] + 1]
    except KafkaException as error:
        if error.args[0].code() in NO_TOPIC:
            raise topic_missing(topic, partitions=partition + 1, evidence=error.args[0].str()) from error
        raise translate(error.args[0], settings=settings) from error
    finally:
        consumer.close()
    return []


def _found(message: Any, judge: Callable[[Mapping[str, Any]], str]) -> TopicRecord:
    try:
        record = json.loads(message.value())
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004, TRY301 - said as all that is wrong with it
        OutboxCheckpoint.of_json(record)
        trouble = judge(record)
    except (ValueError, RecursionError) as error:
        return TopicRecord(offset=message.offset(), trouble=f"it cannot be read: {error}")
    return TopicRecord(offset=message.offset(), record=record, trouble=trouble)


def topic_id(settings: Mapping[str, object], topic: str) -> str | None:
    """Return the id that Kafka assigned to the topic at its creation; None if the id cannot be read."""
    try:
        with AdminClient(client_settings(settings)) as admin:
            described = admin.describe_topics(TopicCollection([topic]), request_timeout=_READ_SECONDS)
            return str(answer_of(described[topic], _READ_SECONDS).topic_id)
    except KafkaException:
        return None


def _reader(settings: Mapping[str, object], topic: str, isolation: str, provider: KafkaConsumerProvider) -> Any:
    own = {
        "group.id": f"{topic}-reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,  # by default, the end of the partition is reported half a second late
    }
    with refused_settings():
        return provider(client_settings(settings, **own))


def _from(consumer: Any, start: TopicPartition, key: str, deadline: Deadline) -> tuple[list[Any], list[Any]]:
    """Read from an offset to the end of the partition. Return two lists: the messages with the key, and, for each other
    key, the last message after all messages with the key."""
    consumer.assign([start])
    found: list[Any] = []
    others: dict[bytes | None, Any] = {}
    while not deadline.passed:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() == error._PARTITION_EOF:
                return found, list(others.values())
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client looks up its group, although it does not use a group
            raise KafkaException(error)
        if message.key() == key.encode() and message.value():
            found.append(message)
            others.clear()
        elif message.value():
            others[message.key()] = message
    raise KafkaUnavailable(
        f"the checkpoint in {start.topic!r} could not be read in time",
        evidence=f"partition {start.partition}, from offset {start.offset}",
        next_step="check that the brokers run; a transaction of another program in this partition would hide its end",
    )
