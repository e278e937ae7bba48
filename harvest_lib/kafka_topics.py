"""Topics: create one, and the errors for one that is missing or too small."""

import shlex
from collections.abc import Mapping

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from harvest_lib.errors import TopicMissing, TopicTooSmall
from harvest_lib.kafka_client import REACH_TIMEOUT_SECONDS, answer_of, client_settings, is_refusal


def create_topic(
    settings: Mapping[str, object],
    name: str,
    *,
    partitions: int,
    config: Mapping[str, str],
    copies: int | None = None,
) -> bool:
    """Create a topic unless it exists. Return False if it exists. `copies` is the replication factor; None leaves it to
    the brokers. Raises TopicMissing if it cannot be created."""
    with AdminClient(client_settings(settings)) as admin:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=copies or -1, config=dict(config))
        try:
            future = admin.create_topics([topic], operation_timeout=REACH_TIMEOUT_SECONDS)[name]
            answer_of(future, REACH_TIMEOUT_SECONDS * 2)
        except KafkaException as error:
            if error.args[0].code() == ClientError.TOPIC_ALREADY_EXISTS:
                return False
            missing = topic_missing(name, partitions=partitions, evidence=error.args[0].str())
            if is_refusal(error.args[0]):
                raise TopicMissing(
                    f"the topic {name!r} does not exist, or this user may not see it, and may not create it",
                    evidence=missing.evidence,
                    next_step=f"{missing.next_step}, and the ACLs that `harvest grants kafka` prints",
                ) from error
            raise missing from error
        return True


def creation(name: str, partitions: int) -> str:
    """Return the next step that creates a topic."""
    return f"as a user who may create topics: harvest topics create {shlex.quote(name)} --partitions {partitions}"


def topic_missing(name: str, *, partitions: int, evidence: str = "") -> TopicMissing:
    """Return the error for a topic that an operator has to create, with the command that creates it."""
    return TopicMissing(
        f"the topic {name!r} does not exist and could not be created",
        evidence=evidence,
        next_step=creation(name, partitions),
    )


def topic_too_small(name: str, *, partitions: int, needed: int, why: str) -> TopicTooSmall:
    """Return the error for a topic that needs more partitions, with the command that adds them."""
    return TopicTooSmall(
        f"the topic {name!r} has fewer partitions than it needs: {why}",
        evidence=f"{partitions}, of {needed}",
        next_step=f"kafka-topics.sh --bootstrap-server … --alter --topic {name} --partitions {needed}",
    )
