"""Checkpoints in Kafka: the last committed record of a partition that one subscription's shard has to itself.

The topic is compacted. It has a partition for each shard because a reader of committed records stops at the first open
transaction of a partition: in a shared one another shard's would hide ours.

Which checkpoint counts, Kafka's or its mirror in Postgres, is decided by `newest`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from harvest_lib.checkpoint import Checkpoint
from harvest_lib.deadline import Deadline
from harvest_lib.delivery.refusals import NO_TOPIC
from harvest_lib.errors import CheckpointError, KafkaUnavailable
from harvest_lib.kafka_client import (
    KafkaConsumerProvider,
    client_settings,
    create_topic,
    refused_settings,
    topic_missing,
    topic_partitions,
    topic_too_small,
    translate,
)

_CONFIG = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
_READ_SECONDS = 5.0
"""Whoever stops waits for this; what takes longer is asked again."""
_POLL_SECONDS = 0.2
_FIRST_STEP = 100


def ensure_checkpoint_topic(settings: Mapping[str, object], topic: str, partitions: int) -> None:
    """Make the topic, or give it the partitions that it lacks; other shards may be doing the same.

    Raises TopicMissing or KafkaUnavailable.
    """
    deadline = Deadline(_READ_SECONDS)
    while (present := topic_partitions(settings).get(topic, 0)) < partitions:
        if deadline.passed:
            raise topic_too_small(topic, partitions=present, needed=partitions, why="a checkpoint for each shard")
        if not present:
            create_topic(settings, topic, partitions=partitions, config=_CONFIG)
            continue
        admin = AdminClient(client_settings(settings))
        try:
            admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_READ_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_PARTITIONS:  # else it has as many, or more, by now
                raise translate(error.args[0], settings=settings) from error


def read_checkpoint(
    settings: Mapping[str, object], topic: str, partition: int, key: str, provider: KafkaConsumerProvider = Consumer
) -> Mapping[str, Any] | None:
    """Return the last committed record of the key, or None. Read backwards from the end.

    Raises TopicMissing if there is no such partition, or KafkaUnavailable.
    """
    consumer = _reader(settings, topic, "read_committed", provider)
    deadline, step = Deadline(_READ_SECONDS), _FIRST_STEP
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_READ_SECONDS)
        start = high
        while start > low:
            start = max(low, high - step)
            step *= 10
            if (found := _last_from(consumer, TopicPartition(topic, partition, start), key, deadline)) is not None:
                return found
    except KafkaException as error:
        if error.args[0].code() in NO_TOPIC:
            raise topic_missing(topic, partitions=partition + 1, evidence=error.args[0].str()) from error
        raise translate(error.args[0], settings=settings) from error
    finally:
        consumer.close()
    return None


def hidden_by_a_transaction(
    settings: Mapping[str, object], topic: str, partition: int, provider: KafkaConsumerProvider = Consumer
) -> str | None:
    """Tell how much of the partition readers of committed records cannot see, as a transaction in it was neither
    committed nor aborted; None if they see all of it. Raises KafkaUnavailable.

    Ours all have ended once a leader has begun, and nobody else writes to the partition. So one that is left *hangs*:
    Kafka has forgotten to end it, and never will.
    """
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = _reader(settings, topic, isolation, provider)
        try:
            ends.append(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_READ_SECONDS)[1])
        except KafkaException as error:
            raise translate(error.args[0], settings=settings) from error
        finally:
            consumer.close()
    seen, end = ends
    return f"{end} offsets, of which readers of committed records see {seen}" if seen < end else None


def newest(mirror: Checkpoint, record: Mapping[str, Any] | None, *, outbox: str, place: str) -> Checkpoint:
    """Return where a subscription stands, from its mirror in Postgres and what Kafka has.

    Kafka's counts, unless the subscription was rewound since, or was delivered without transactions meanwhile. Raises
    CheckpointError when Kafka has lost what the mirror knows it had, or has the checkpoint of another outbox.
    """
    if record is not None and record["outbox"] != outbox:
        raise CheckpointError(
            f"{place} belongs to another outbox: two configurations share one name",
            evidence=f"it is of {record['outbox']}, this is {outbox}",
            next_step="give one of them another `leaderGroupID` or `subscription`",
        )
    theirs = Checkpoint.of_json(record) if record is not None else None
    if theirs is not None and theirs.generation > mirror.generation:
        raise CheckpointError(
            f"{place} is ahead of the database",
            evidence=f"generation {theirs.generation}, the table's {mirror.generation}: was the database restored?",
            next_step="anchor the subscription anew: `harvest subscriptions rewind … --to beginning|now|SNAPSHOT`",
        )
    if mirror.kept_in != "kafka":
        same = theirs is not None and theirs.generation == mirror.generation and theirs.number > mirror.number
        return replace(theirs, kept_in="kafka") if theirs is not None and same else mirror
    if theirs is None or (theirs.generation, theirs.number) < (mirror.generation, mirror.number):
        raise CheckpointError(
            f"{place} is behind its mirror in Postgres: the topic was made anew, or lost records",
            evidence=f"number {theirs.number if theirs else 'none'}, the mirror's {mirror.number}",
            next_step="going on could repeat records: anchor the subscription anew, from the mirror with "
            "`harvest subscriptions rewind … --to mirror`",
        )
    return replace(theirs, kept_in="kafka")


def _reader(settings: Mapping[str, object], topic: str, isolation: str, provider: KafkaConsumerProvider) -> Any:
    own = {
        "group.id": f"{topic}-reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,  # or the answer that there is no more comes half a second late
    }
    with refused_settings():
        return provider(client_settings(settings, **own))


def _last_from(consumer: Any, start: TopicPartition, key: str, deadline: Deadline) -> Mapping[str, Any] | None:
    consumer.assign([start])
    found: Mapping[str, Any] | None = None
    while not deadline.passed:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() == error._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own code
                return found
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client looks for the coordinator of a group that nobody joins: no ACL is owed for that
            raise KafkaException(error)
        if message.key() == key.encode() and message.value():
            found = json.loads(message.value())
    raise KafkaUnavailable(
        f"the checkpoint in {start.topic!r} could not be read in time",
        evidence=f"partition {start.partition}, from offset {start.offset}",
        next_step="check that the brokers run; a transaction of another program in this partition would hide its end",
    )
