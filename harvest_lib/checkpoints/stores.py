"""The stores of checkpoints: Postgres, with or without pending acknowledgements, or Kafka with a mirror there."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, KafkaException

from harvest_lib.checkpoints.choice import Belonging, check_outbox, is_of_another_timeline, judged, newest
from harvest_lib.checkpoints.record import begin_anew
from harvest_lib.checkpoints.table import Checkpoint, CheckpointTable, LeadershipStatus
from harvest_lib.checkpoints.topic import (
    Found,
    ensure_checkpoint_topic,
    hidden_by_a_transaction,
    read_checkpoints,
    topic_id,
)
from harvest_lib.clock import boot_seconds
from harvest_lib.config.model import default_checkpoint_topic
from harvest_lib.delivery import CheckpointPlace
from harvest_lib.errors import CheckpointError, KafkaAccessDenied, KafkaUnavailable, TopicMissing
from harvest_lib.kafka_client import KafkaConsumerProvider, is_refusal
from harvest_lib.outbox.identity import has_unique_name, is_same_table
from harvest_lib.sequencing.publisher import Intent
from harvest_lib.source.server_identity import timeline

Acknowledge = Callable[[Sequence[Intent]], Sequence[Intent]]
"""Write acknowledgements, wait until Kafka has them, and return those that cannot be written, as their topic is not
there or refuses them. Raises KafkaUnavailable."""

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
"""Acknowledgements that are pending are tried again this often: their topic may be there, or take them, by now."""
_LEAP = 1_000_000_000


class PostgresStore:
    """`CheckpointStore` in the table of subscriptions."""

    kept_in = "postgres"
    keeps_positions = True

    def __init__(self, checkpoints: CheckpointTable, acknowledge: Acknowledge) -> None:
        """`acknowledge` writes acknowledgements that an earlier leader may have left unwritten, by any delivery."""
        self._checkpoints = checkpoints
        self._acknowledge = acknowledge
        self._pending: Sequence[Sequence[Any]] = ()  # not writable yet: the topic may be there again some day
        self._ask_at = 0.0
        self._mirror = Checkpoint(generation=0)

    @property
    def epoch(self) -> int:
        return self._checkpoints.epoch

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> None:
        self._mirror = self._checkpoints.lead(leader_id, after_epoch)

    def leadership_status(self) -> LeadershipStatus:
        status, checkpoint = self._checkpoints.leadership_status()
        self._mirror = checkpoint or self._mirror
        return status

    def load(self) -> Checkpoint:
        self._acknowledge_again()
        if self._mirror.kept_in == "postgres":
            return self._mirror
        # Kafka's may be ahead of its mirror: numbers that go on from here are above those that it has given.
        return replace(self._mirror, number=self._mirror.number + _LEAP)

    def save(self, checkpoint: Checkpoint) -> bool:
        if self._pending and boot_seconds() >= self._ask_at:
            with suppress(KafkaUnavailable):  # then it is asked again later
                self._acknowledge_pending(self._pending)
        if self._pending:
            checkpoint = replace(checkpoint, intents=[*checkpoint.intents, *self._pending])
        saved = self._checkpoints.save(checkpoint)
        self._mirror = checkpoint if saved else self._mirror
        return saved

    def close(self) -> None:
        self._checkpoints.close()

    def _acknowledge_again(self) -> None:
        self._acknowledge_pending(self._mirror.intents)

    def _acknowledge_pending(self, kept: Sequence[Sequence[Any]]) -> None:
        self._ask_at = boot_seconds() + _ASK_SECONDS
        intents = [Intent.of_json(list(each)) for each in kept]
        pending = self._acknowledge(intents) if intents else ()
        if pending:
            _log.warning("acknowledgements_pending", extra={"topics": sorted({each.topic for each in pending})})
        self._pending = [each.to_json() for each in pending]


class PurgeStore:
    """`CheckpointStore` of a table that is marked and delivered at least once: a batch counts once it is purged.

    Nothing else is stored, as other members of the pool may be goharvest's. Nothing fences a former leader: under the
    barrier its queue expires within the session timeout, pipelined a topic has to reject late records.
    """

    kept_in = "postgres"
    keeps_positions = False
    epoch = None

    def __init__(self, purge: Callable[[], None]) -> None:
        self._purge = purge

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> None:
        pass

    def leadership_status(self) -> LeadershipStatus:
        return LeadershipStatus.LEADS

    def load(self) -> Checkpoint:
        return Checkpoint(generation=0)

    def save(self, checkpoint: Checkpoint) -> bool:  # noqa: ARG002 - what it has passed is gone from the table
        self._purge()
        return True

    def close(self) -> None:
        pass


class IntentStore(PostgresStore):
    """`CheckpointStore` in the table of subscriptions. Each batch's checkpoint is saved together with the
    acknowledgements that make readers see the batch."""

    def load(self) -> Checkpoint:
        checkpoint = self._checkpoints.renew()
        if checkpoint is None:  # the new leader acknowledges; `leadership_status` says so
            return self._mirror
        self._mirror = checkpoint
        return super().load()

    def save_pending(self, checkpoint: Checkpoint, intents: Sequence[Intent]) -> bool:
        """Save a checkpoint with the acknowledgements that follow from it; False if it was refused."""
        return super().save(replace(checkpoint, intents=[intent.to_json() for intent in intents]))

    def ask_again(self) -> bool:
        """Write pending acknowledgements again, if it is time to; False if the result could not be saved."""
        is_due = bool(self._pending) and boot_seconds() >= self._ask_at
        return not is_due or self.save_pending(self._mirror, ())

    def save(self, checkpoint: Checkpoint) -> bool:
        is_kept = (checkpoint.generation, checkpoint.number) == (self._mirror.generation, self._mirror.number)
        return is_kept or super().save(checkpoint)


class KafkaStore(PostgresStore):
    """`CheckpointStore` in the checkpoint topic, inside the transactions. `outbox` names database and table, as older
    checkpoints did alone; `kafka` are the base settings of the user."""

    kept_in = "kafka"
    keeps_positions = True

    def __init__(
        self,
        checkpoints: CheckpointTable,
        kafka: Mapping[str, object],
        place: CheckpointPlace,
        outbox: str,
        *,
        group: str = "",
        acknowledge: Acknowledge,
        consumer_provider: KafkaConsumerProvider = Consumer,
    ) -> None:
        super().__init__(checkpoints, acknowledge)
        self._group = group
        self._kafka = kafka
        self._place = place
        self._outbox = outbox
        self._consumer_provider = consumer_provider

    def load(self) -> Checkpoint:
        self._acknowledge_again()
        place = self._place
        under = {"group": self._group, "topic": place.topic, "topic_id": self._topic_id()}
        self._checkpoints.sign(kafka={name: value for name, value in under.items() if value})
        ours = self._belonging(under)
        if ours.timeline is not None:
            self._checkpoints.sign(timeline=ours.timeline)
        try:
            record = self._read(ours)
        except TopicMissing:  # it was there when we started
            record = self._read_anew(ours)
        try:
            return newest(self._mirror, record, ours=ours, place=self._where)
        except CheckpointError as error:
            hidden = hidden_by_a_transaction(self._kafka, place.topic, place.partition, self._consumer_provider)
            if hidden is None:
                raise
            raise CheckpointError(
                f"{self._where} is hidden behind a transaction that hangs: Kafka forgot to end it",
                evidence=f"partition {place.partition} has {hidden}; {error.cause}, {error.evidence}",
                next_step="end it with `kafka-transactions.sh find-hanging` and `abort`, in the records' topics too; "
                "that takes back what it sent, so go back to before it: `harvest subscriptions rewind "
                f"{self._name} --to SNAPSHOT`",
            ) from error

    @property
    def _name(self) -> str:
        return str(self._checkpoints.holder["subscription"])

    @property
    def _where(self) -> str:
        return f"the checkpoint {self._place.key!r} in topic {self._place.topic!r}"

    def refuse_another(self) -> None:
        """Raise CheckpointError if the record in Kafka names another outbox. Nobody is fenced by asking."""
        mirror = self._checkpoints.look()
        ours = self._belonging()
        with suppress(TopicMissing):
            for found in self._find(ours, mirror):
                if "identity" in found.record:
                    check_outbox(mirror, found.record, ours, self._where)

    def _read_anew(self, ours: Belonging) -> Mapping[str, Any] | None:
        """Read once more, from a topic that is made if need be. A broker that has just come back may not know it yet,
        and a topic that is not ours to see is said not to be there: both may pass."""
        try:
            ensure_checkpoint_topic(self._kafka, self._place.topic, self._place.partition + 1)
            return self._read(ours)
        except TopicMissing as error:
            refused = isinstance(error.__cause__, KafkaException) and is_refusal(error.__cause__.args[0])
            kind = KafkaAccessDenied if refused else KafkaUnavailable
            raise kind(error.cause, evidence=error.evidence, next_step=error.next_step) from error

    def _read(self, ours: Belonging) -> Mapping[str, Any] | None:
        """Return Kafka's checkpoint by a leader of ours. If an operator placed the mirror, unsound ones are skipped."""
        is_placed = self._mirror.kept_in == "postgres" and bool(self._mirror.origin.get("placed"))
        found = self._find(ours, self._mirror, to_sound=is_placed)
        if not found:
            return None
        if is_placed or not found[0].trouble:
            self._checkpoints.forget_leaders(found[-1].record)
            if is_of_another_timeline(found[-1].record, ours, self._mirror):
                _log.warning("standby_was_promoted", extra={"timeline": ours.timeline, "checkpoint": self._where})
            return found[-1].record
        if self._mirror.position is None:
            raise CheckpointError(
                f"Kafka has a checkpoint of the subscription {self._name!r}, which is new in Postgres",
                evidence=f"{self._where}, offset {found[0].offset}: {found[0].trouble}",
                next_step="if it was removed, or its row was lost, choose where it begins: "
                f"{begin_anew(self._name)}; what is delivered again from there comes twice",
            )
        raise CheckpointError(
            f"what is {self._where} was not written by a leader of this subscription",
            evidence=f"topic {self._place.topic}, partition {self._place.partition}, offset {found[0].offset}: "
            f"{found[0].trouble}",
            next_step="see who may write to that topic, and whether Postgres was restored or failed over, and lacks "
            "what was written last: then the checkpoint may be right, and `harvest audit` tells what is in Kafka; "
            f"go on from the mirror in Postgres, which may repeat what was delivered since: "
            f"{begin_anew(self._name, self._mirror)}",
        )

    def _find(self, ours: Belonging, mirror: Checkpoint, *, to_sound: bool = False) -> Sequence[Found]:
        place = self._place
        return read_checkpoints(
            self._kafka,
            place.topic,
            place.partition,
            place.key,
            self._consumer_provider,
            judge=lambda record: judged(record, ours, mirror),
            to_sound=to_sound,
            hear_other=self._refuse_shared,
        )

    def _refuse_shared(self, record: Mapping[str, Any]) -> None:
        """Raise CheckpointError for a record of another group's subscription, if both names make our topic's."""
        group, name = (record.get("kafka") or {}).get("group"), record.get("subscription")
        ours, theirs = (self._group, self._name), (group, name)
        is_shared = all(default_checkpoint_topic(*map(str, each)) == self._place.topic for each in (ours, theirs))
        if is_shared and ours != theirs:
            raise CheckpointError(
                f"two configurations share the checkpoint topic {self._place.topic!r}, and would fence each other",
                evidence=f"`leaderGroupID` {group!r} with `subscription` {name!r} makes the name that {self._group!r} "
                f"with {self._name!r} makes",
                next_step="set `checkpointTopic` in this configuration to a name of its own; if the other subscription "
                "is gone permanently, delete the topic",
            )

    def _belonging(self, written_under: Mapping[str, Any] | None = None) -> Belonging:
        checkpoints, identity = self._checkpoints, self._checkpoints.identity
        if identity is None:
            return Belonging(outbox=self._outbox)
        connection = checkpoints.connected()
        return Belonging(
            outbox=self._outbox,
            identity=identity,
            subscription=checkpoints.holder["subscription"],
            shard=checkpoints.holder["shard"],
            source=checkpoints.source,
            older_led=checkpoints.older_led,
            timeline=timeline(connection),
            leaders=checkpoints.leaders,
            is_same=lambda other: is_same_table(connection, other, identity),
            has_unique_name=lambda: has_unique_name(connection, identity),
            written_under=written_under or {},
        )

    def _topic_id(self) -> str | None:
        return topic_id(self._kafka, self._place.topic) if self._checkpoints.identity is not None else None

    def encode(self, checkpoint: Checkpoint) -> bytes:
        """Return the record of a checkpoint that goes along in its batch's transaction."""
        record = {**checkpoint.as_json(), **self._checkpoints.origin, "outbox": self._outbox}
        return json.dumps(record, separators=(",", ":")).encode()
