"""Client of librdkafka for a delivery in batches: its settings and their guarantees, and its native sender.

All records of a key go to one partition. `partitioner=consistent` hashes keys as librdkafka's own default does, and
therefore as goharvest does, but it does not scatter records with the empty key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Producer

from harvest_lib.delivery.errors import DEFAULTS, ONE_AT_A_TIME
from harvest_lib.delivery.protocol import BatchDeliverySettings
from harvest_lib.delivery.topic_facts import DEFAULT_BATCH_BYTES
from harvest_lib.kafka_client import KafkaProducer, KafkaProducerProvider, client_settings, refused_settings
from harvest_lib.native import NativeSender, make_with_sender


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerKind:
    """Properties of the producer of a delivery.

    `settings` are the delivery's own settings of librdkafka. `native_settings` are added if C code receives each
    record's report. `wire_seconds`: longest wait for records on the wire when the client is discarded. `fences`: a
    fencing error ends the leader. `arrived`: called for each report that a record is in Kafka, with the record's topic
    and partition. `close`: closes a client that has an empty queue, and ignores its reports; None if a close is quick.
    """

    settings: Mapping[str, object]
    native_settings: Mapping[str, object] = field(default_factory=dict)
    wire_seconds: float = 0.0
    fences: bool = False
    arrived: Callable[[str, int], None] | None = None
    close: Callable[[KafkaProducer, NativeSender | None], None] | None = None


def is_own(provider: KafkaProducerProvider) -> bool:
    """Return True if the user provides the clients. Then Python hands over each record with a callback for the
    record's report."""
    return provider is not Producer


def make_client(
    settings: BatchDeliverySettings,
    kind: ProducerKind,
    largest_batch: int,
    report: Callable[[KafkaError | None, Any], None],
) -> tuple[KafkaProducer, NativeSender | None]:
    """Return a client, and its native sender if available. `largest_batch`: bytes of the largest batch that every topic
    takes. Raises ConfigError for a setting that librdkafka does not take."""
    user = {**DEFAULTS, **settings.kafka}
    own = {
        "acks": "all",
        "allow.auto.create.topics": False,
        "enable.idempotence": True,
        "on_delivery": report,
        # Reports of delivered records are needed for their partitions. A user's own client gets all reports too.
        "delivery.report.only.error": kind.arrived is None and not is_own(settings.producer_provider),
        **ONE_AT_A_TIME,
        **kind.settings,
    }
    largest = min(largest_batch, DEFAULT_BATCH_BYTES)
    if largest < int(str(user.get("batch.size", DEFAULT_BATCH_BYTES))):
        own["batch.size"] = largest
    with refused_settings():
        client, sender = make_with_sender(
            settings.producer_provider, client_settings(user, **own), kind.native_settings
        )
    if sender is not None and kind.arrived is not None:
        sender.track()
    return client, sender
