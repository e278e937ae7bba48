"""Queries the offsets of many partitions in a single request.

`open_transactions` finds open transactions, which hide records from readers of committed records. `last_reads` detects
logs that were replaced since they were read.
"""

from collections.abc import Collection
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from harvest_lib.kafka_client import answer_of

EARLIEST, LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call] # the client's own

Place = tuple[str, int]
"""A topic and a partition."""


def list_offsets(
    admin: AdminClient,
    places: Collection[Place],
    spec: OffsetSpec,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout_seconds: float,
) -> dict[Place, int | KafkaError]:
    """Return for each partition the offset that `spec` selects for readers with `isolation`, or Kafka's error."""
    wanted = {TopicPartition(*place): spec for place in places}
    asked: Any = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout_seconds)
    found: dict[Place, int | KafkaError] = {}
    for at, answer in asked.items():
        try:
            found[at.topic, at.partition] = answer_of(answer, 2 * timeout_seconds).offset
        except KafkaException as error:
            found[at.topic, at.partition] = error.args[0]
    return found
