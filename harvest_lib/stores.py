"""The stores of checkpoints: Postgres alone, or Kafka with a mirror in Postgres."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer

from harvest_lib.checkpoint import Checkpoint, Checkpoints, Standing
from harvest_lib.checkpoint_topic import ensure_checkpoint_topic, hidden_by_a_transaction, newest, read_checkpoint
from harvest_lib.delivery import CheckpointPlace
from harvest_lib.errors import CheckpointError, KafkaUnavailable, TopicMissing
from harvest_lib.kafka_client import KafkaConsumerProvider

_LEAP = 1_000_000_000


class PostgresStore:
    """`Store` in the table of subscriptions."""

    kept_in = "postgres"

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._mirror = Checkpoint(generation=0)

    def lead(self, leader_id: UUID) -> None:
        self._mirror = self._checkpoints.lead(leader_id)

    def standing(self) -> Standing:
        standing, checkpoint = self._checkpoints.standing()
        self._mirror = checkpoint or self._mirror
        return standing

    def stands(self) -> Checkpoint:
        if self._mirror.kept_in == self.kept_in:
            return self._mirror
        # Kafka's may be ahead of its mirror: numbers that go on from here are above those that it has given.
        return replace(self._mirror, number=self._mirror.number + _LEAP)

    def record(self, _checkpoint: Checkpoint, /) -> bytes | None:
        return None

    def save(self, checkpoint: Checkpoint) -> bool:
        saved = self._checkpoints.save(checkpoint)
        self._mirror = checkpoint if saved else self._mirror
        return saved

    def close(self) -> None:
        self._checkpoints.close()


class KafkaStore(PostgresStore):
    """`Store` in the checkpoint topic, inside the transactions. `outbox` identifies the table, `kafka` are the base
    settings of the user."""

    kept_in = "kafka"

    def __init__(
        self,
        checkpoints: Checkpoints,
        kafka: Mapping[str, object],
        place: CheckpointPlace,
        outbox: str,
        consumer_provider: KafkaConsumerProvider = Consumer,
    ) -> None:
        super().__init__(checkpoints)
        self._kafka = kafka
        self._place = place
        self._outbox = outbox
        self._consumer_provider = consumer_provider

    def stands(self) -> Checkpoint:
        place = self._place
        try:
            record = self._read()
        except TopicMissing:  # it was there when we started
            record = self._read_anew()
        where = f"the checkpoint {place.key!r} in topic {place.topic!r}"
        try:
            return newest(self._mirror, record, outbox=self._outbox, place=where)
        except CheckpointError as error:
            hidden = hidden_by_a_transaction(self._kafka, place.topic, place.partition, self._consumer_provider)
            if hidden is None:
                raise
            raise CheckpointError(
                f"{where} is hidden behind a transaction that hangs: Kafka forgot to end it",
                evidence=f"partition {place.partition} has {hidden}; {error.cause}, {error.evidence}",
                next_step="end it with `kafka-transactions.sh find-hanging` and `abort`, in the records' topics too; "
                "that takes back what it sent, so go back to before it: `harvest subscriptions rewind … --to SNAPSHOT`",
            ) from error

    def _read_anew(self) -> Mapping[str, Any] | None:
        """Read once more, from a topic that is made if need be. A broker that has just come back may not know it yet:
        that passes."""
        try:
            ensure_checkpoint_topic(self._kafka, self._place.topic, self._place.partition + 1)
            return self._read()
        except TopicMissing as error:
            raise KafkaUnavailable(error.cause, evidence=error.evidence, next_step=error.next_step) from error

    def _read(self) -> Mapping[str, Any] | None:
        place = self._place
        return read_checkpoint(self._kafka, place.topic, place.partition, place.key, self._consumer_provider)

    def record(self, checkpoint: Checkpoint, /) -> bytes | None:
        return json.dumps({**checkpoint.as_json(), "outbox": self._outbox}, separators=(",", ":")).encode()
