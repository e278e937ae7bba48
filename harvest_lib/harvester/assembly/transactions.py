"""Check at the start that Kafka permits the operations of `delivery: transactional`. If not, the start fails."""

import logging
from contextlib import suppress

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from harvest_lib.checkpoints.topic import ensure_checkpoint_topic, removes_checkpoints
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery.errors import FENCED, NO_TOPIC
from harvest_lib.delivery.transactional import TRANSACTION_SECONDS
from harvest_lib.errors import KafkaAccessDenied, KafkaError, KafkaUnavailable, TopicMissing
from harvest_lib.grants.kafka import Acl, Resource, commands
from harvest_lib.kafka_client import (
    KafkaProducerProvider,
    answer_of,
    client_settings,
    is_refusal,
    topic_settings,
    translate,
)

_log = logging.getLogger(__name__)

WITHOUT = "or deliver without transactions: `delivery: barrier`"
_TOO_LONG = ClientError(ClientError.INVALID_TRANSACTION_TIMEOUT).str()
_SECONDS = 10.0
"""Timeout of requests. It is long enough for a new cluster, which first has to create its topic for transactions."""


def prepare_transactions(config: HarvestConfig, provider: KafkaProducerProvider = Producer) -> None:
    """Create the checkpoint topic if it is missing, and try to begin a transaction. Raises KafkaUnavailable. Raises
    KafkaAccessDenied or TopicMissing with two next steps: the command that helps, or a delivery without
    transactions."""
    try:
        ensure_checkpoint_topic(config.kafka_settings(for_producer=False), config.checkpoint_topic, config.shards)
    except (KafkaAccessDenied, TopicMissing) as error:
        raise type(error)(error.cause, evidence=error.evidence, next_step=f"{error.next_step}; {WITHOUT}") from error
    with AdminClient(client_settings(config.kafka_settings(for_producer=False))) as admin:
        _require_writing(config, admin)
        _log_removed(config, admin)
    try_transactions(config, provider)


def _log_removed(config: HarvestConfig, admin: AdminClient) -> None:
    """Log a warning if Kafka removes checkpoints by age or size. This is Kafka's default for a topic that the harvester
    did not create."""
    topic = config.checkpoint_topic
    policy = topic_settings(admin, [topic], timeout_seconds=_SECONDS)[topic].get("cleanup.policy", "")
    if removes_checkpoints(policy):
        _log.warning("checkpoints_removed", extra={"topic": topic, "cleanup_policy": policy})


def _require_writing(config: HarvestConfig, admin: AdminClient) -> None:
    """Raise KafkaAccessDenied unless this user may write and read checkpoints. Brokers without ACLs allow both."""
    settings, topic = config.kafka_settings(for_producer=False), config.checkpoint_topic
    answer = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=_SECONDS
    )
    try:
        allowed = answer_of(answer[topic], 2 * _SECONDS).authorized_operations
    except KafkaException as error:
        if error.args[0].code() in NO_TOPIC:
            return  # the topic is new, and the broker that answered does not have it yet
        raise translate(error.args[0], settings=settings) from error
    needed = {"Read": AclOperation.READ, "Write": AclOperation.WRITE}
    if allowed is not None and (missing := [each for each, code in needed.items() if code not in allowed]):
        evidence = f"allowed: {', '.join(each.name for each in allowed) or 'none'}"
        raise lacking(config, "topic", topic, missing, evidence, otherwise=f"; {WITHOUT}")


def try_transactions(config: HarvestConfig, provider: KafkaProducerProvider = Producer) -> None:
    """Initialize transactions with a transactional id that no shard uses, so that no leader is fenced. Raises
    KafkaAccessDenied, KafkaError if the transaction timeout is too long for Kafka, or KafkaUnavailable."""
    settings = config.kafka_settings(for_producer=True)
    own = {"transactional.id": f"{config.checkpoint_topic}.check", "transaction.timeout.ms": TRANSACTION_SECONDS * 1000}
    producer = provider(client_settings(settings, **own))
    try:
        producer.init_transactions(_SECONDS)
    except KafkaException as error:
        if is_refusal(error.args[0]):
            prefix = f"{config.checkpoint_topic}."
            evidence, operations = error.args[0].str(), ["Write", "Describe"]
            raise lacking(
                config, "transactional-id", prefix, operations, evidence, prefixed=True, otherwise=f"; {WITHOUT}"
            ) from error
        if _TOO_LONG in error.args[0].str():  # compared by its text, since a fatal error has another code
            raise KafkaError(
                f"Kafka permits no transaction of {TRANSACTION_SECONDS} s",
                evidence=error.args[0].str(),
                next_step=f"set `transaction.max.timeout.ms` of the brokers to {TRANSACTION_SECONDS * 1000} or more "
                f"(the default is 900000); {WITHOUT}",
            ) from error
        if error.args[0].code() not in FENCED:  # fenced by another process's check: Kafka permits transactions
            raise KafkaUnavailable(
                f"Kafka has begun no transaction in {_SECONDS:g} s",
                evidence=error.args[0].str(),
                next_step="check that the brokers run, and that `transaction.state.log.replication.factor` "
                f"and `transaction.state.log.min.isr` do not exceed their number; {WITHOUT}",
            ) from error
    finally:
        with suppress(KafkaException):
            producer.close()


def lacking(
    config: HarvestConfig,
    resource: Resource,
    name: str,
    operations: list[str],
    evidence: str,
    *,
    prefixed: bool = False,
    otherwise: str = "",
) -> KafkaAccessDenied:
    """Return the error for operations that this user lacks. Its next step has the commands that permit the operations,
    and the text `otherwise`."""
    settings = config.kafka_settings(for_producer=False)
    user, servers = settings.get("sasl.username", "…"), str(settings["bootstrap.servers"])
    acls = [
        Acl(principal=f"User:{user}", resource=resource, name=name, operation=each, prefixed=prefixed)
        for each in operations
    ]
    return KafkaAccessDenied(
        f"this user lacks {', '.join(operations)} on the {resource} {name!r}",
        evidence=evidence,
        next_step=f"{'; '.join(commands(acls, servers=servers))}; or all that `harvest grants kafka` prints{otherwise}",
    )
