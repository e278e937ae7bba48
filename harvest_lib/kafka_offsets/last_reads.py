"""Checks that each partition still has the record that was read last. If the partition's log lost its end, another
record, or no record, is at that offset.

A reader checks when it starts. It also checks when brokers answer again after all brokers were unavailable, because the
brokers may have been restored, together with their leader epochs. The check has no result for a record that retention
removed, or that compaction may have removed, because the topic's policy is `compact` or cannot be read.
"""

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import Deadline
from harvest_lib.kafka_client import client_settings, topic_settings
from harvest_lib.kafka_offsets import Place
from harvest_lib.record.last_read import LastRead

_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.2


class BrokersLost:
    """An `error_cb` that sets `is_noted` when all brokers have become unavailable. It passes all errors to `then`."""

    def __init__(self, then: Callable[[KafkaError], object] | None = None) -> None:
        self.is_noted = False
        self._then = then

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_noted = True
        if self._then is not None:
            self._then(error)


def replaced(client: Any, settings: Mapping[str, object], lasts: Mapping[Place, LastRead]) -> Mapping[Place, str]:
    """Return the evidence for each partition whose log was replaced since it was read.

    Each offset in `lasts` must be within the offsets of its partition. The client must report the ends of partitions
    (`enable.partition.eof`). The client's assignment is empty after the call, even after an error. Raises
    KafkaException if a request fails or a record does not arrive in time.
    """
    client.assign([TopicPartition(*place, last.offset) for place, last in lasts.items()])
    try:
        found, gone = _compared(client, lasts)
    finally:
        client.resume([TopicPartition(*place) for place in lasts])  # else a later assignment would start paused
        client.unassign()
    return {**found, **_not_compacted(settings, gone)}


def _compared(client: Any, lasts: Mapping[Place, LastRead]) -> tuple[Mapping[Place, str], Mapping[Place, str]]:
    """Return two results: the evidence for partitions with another record at the offset, and the evidence for
    partitions without a record there. Pause each partition after its comparison."""
    found: dict[Place, str] = {}
    gone: dict[Place, str] = {}
    waiting, deadline = dict(lasts), Deadline(_ANSWER_SECONDS)
    while waiting:
        if deadline.passed:
            where = ", ".join(f"{topic}/{partition} at {last.offset}" for (topic, partition), last in waiting.items())
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"records that were read do not come: {where}"))
        record = client.poll(_POLL_SECONDS)
        if record is None or (place := (record.topic(), record.partition())) not in waiting:
            _require_good(record)
            continue
        last = waiting[place]
        if (error := record.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if error is not None and record.offset() <= last.offset:
            continue  # a newly elected leader may not return all records yet
        if error is not None or record.offset() != last.offset:
            gone[place] = f"offset {last.offset} has no record any more, and a record was read there"
        elif not last.fits(record):
            written = LastRead.at(record).timestamp
            found[place] = (
                f"offset {last.offset} has another record than was read there: its time is {written}, and was "
                f"{last.timestamp}"
            )
        del waiting[place]
        client.pause([TopicPartition(*place)])
    return found, gone


def _require_good(record: Any) -> None:
    error = record.error() if record is not None else None
    if error is not None and error.code() not in {KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED}:
        raise KafkaException(error)


def _not_compacted(settings: Mapping[str, object], gone: Mapping[Place, str]) -> dict[Place, str]:
    """Return the entries of `gone` for topics with the policy `delete`. In such a topic only retention removes records,
    and only from the beginning of the log."""
    if not gone:
        return {}
    with AdminClient(client_settings(settings)) as admin:
        known = topic_settings(admin, {topic for topic, _ in gone}, timeout_seconds=_ANSWER_SECONDS)
    return {place: evidence for place, evidence in gone.items() if known[place[0]].get("cleanup.policy") == "delete"}
