"""The stores of checkpoints: Postgres, with or without what is to be acknowledged, or Kafka with a mirror there."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, KafkaException

from harvest_lib.checkpoint import Checkpoint, Checkpoints, Standing
from harvest_lib.checkpoint_topic import ensure_checkpoint_topic, hidden_by_a_transaction, newest, read_checkpoint
from harvest_lib.consume import Intent
from harvest_lib.deadline import boot_seconds
from harvest_lib.delivery import CheckpointPlace, Offer
from harvest_lib.errors import CheckpointError, KafkaAccessDenied, KafkaUnavailable, TopicMissing
from harvest_lib.kafka_client import KafkaConsumerProvider, is_refusal

Acknowledge = Callable[[Sequence[Intent]], Sequence[Intent]]
"""Write acknowledgements, wait until Kafka has them, and return those that cannot be written, as their topic is not
there. Raises KafkaUnavailable."""

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
"""Whether a topic is there again, to which acknowledgements are owed, is asked this often."""
_LEAP = 1_000_000_000


class PostgresStore:
    """`Store` in the table of subscriptions."""

    kept_in = "postgres"

    def __init__(self, checkpoints: Checkpoints, acknowledge: Acknowledge) -> None:
        """`acknowledge` writes what a leader may have died before it wrote it, whatever that delivered by."""
        self._checkpoints = checkpoints
        self._acknowledge = acknowledge
        self._owed: Sequence[Sequence[Any]] = ()  # what could not be written: the topic may be there again some day
        self._ask_at = 0.0
        self._mirror = Checkpoint(generation=0)

    def lead(self, leader_id: UUID) -> None:
        self._mirror = self._checkpoints.lead(leader_id)

    def standing(self) -> Standing:
        standing, checkpoint = self._checkpoints.standing()
        self._mirror = checkpoint or self._mirror
        return standing

    def stands(self) -> Checkpoint:
        self._acknowledge_again()
        if self._mirror.kept_in == "postgres":
            return self._mirror
        # Kafka's may be ahead of its mirror: numbers that go on from here are above those that it has given.
        return replace(self._mirror, number=self._mirror.number + _LEAP)

    def offer(self, _checkpoint: Checkpoint, /) -> Offer:
        return None

    def save(self, checkpoint: Checkpoint) -> bool:
        if self._owed and boot_seconds() >= self._ask_at:
            with suppress(KafkaUnavailable):  # then it is asked again later
                self._acknowledge_owed(self._owed)
        if self._owed:
            checkpoint = replace(checkpoint, intents=[*checkpoint.intents, *self._owed])
        saved = self._checkpoints.save(checkpoint)
        self._mirror = checkpoint if saved else self._mirror
        return saved

    def close(self) -> None:
        self._checkpoints.close()

    def _acknowledge_again(self) -> None:
        self._acknowledge_owed(self._mirror.intents)

    def _acknowledge_owed(self, kept: Sequence[Sequence[Any]]) -> None:
        self._ask_at = boot_seconds() + _ASK_SECONDS
        intents = [Intent.of_json(list(each)) for each in kept]
        owed = self._acknowledge(intents) if intents else ()
        if owed:
            _log.warning("acknowledgements_owed", extra={"topics": sorted({each.topic for each in owed})})
        self._owed = [each.to_json() for each in owed]


class IntentStore(PostgresStore):
    """`Store` in the table of subscriptions, each lap's together with the acknowledgements that make readers see it."""

    def stands(self) -> Checkpoint:
        checkpoint = self._checkpoints.renew()
        if checkpoint is None:  # whoever leads now acknowledges; `standing` says so
            return self._mirror
        self._mirror = checkpoint
        return super().stands()

    def offer(self, checkpoint: Checkpoint, /) -> Offer:
        return lambda intents: super(IntentStore, self).save(
            replace(checkpoint, intents=[intent.to_json() for intent in intents])
        )

    def save(self, checkpoint: Checkpoint) -> bool:
        is_kept = (checkpoint.generation, checkpoint.number) == (self._mirror.generation, self._mirror.number)
        return is_kept or super().save(checkpoint)


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
        *,
        acknowledge: Acknowledge,
        consumer_provider: KafkaConsumerProvider = Consumer,
    ) -> None:
        super().__init__(checkpoints, acknowledge)
        self._kafka = kafka
        self._place = place
        self._outbox = outbox
        self._consumer_provider = consumer_provider

    def stands(self) -> Checkpoint:
        self._acknowledge_again()
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
        """Read once more, from a topic that is made if need be. A broker that has just come back may not know it yet,
        and a topic that is not ours to see is said not to be there: both may pass."""
        try:
            ensure_checkpoint_topic(self._kafka, self._place.topic, self._place.partition + 1)
            return self._read()
        except TopicMissing as error:
            refused = isinstance(error.__cause__, KafkaException) and is_refusal(error.__cause__.args[0])
            kind = KafkaAccessDenied if refused else KafkaUnavailable
            raise kind(error.cause, evidence=error.evidence, next_step=error.next_step) from error

    def _read(self) -> Mapping[str, Any] | None:
        place = self._place
        return read_checkpoint(self._kafka, place.topic, place.partition, place.key, self._consumer_provider)

    def offer(self, checkpoint: Checkpoint, /) -> Offer:
        return json.dumps({**checkpoint.as_json(), "outbox": self._outbox}, separators=(",", ":")).encode()
