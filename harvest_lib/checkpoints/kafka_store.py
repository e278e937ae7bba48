"""Checkpoint store for `delivery: transactional`: checkpoints are in Kafka, with a copy (the mirror) in Postgres."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException

from harvest_lib.checkpoints.choice import CheckpointChoice
from harvest_lib.checkpoints.record import begin_anew, compact
from harvest_lib.checkpoints.stores import Acknowledge, PostgresCheckpointStore
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.checkpoints.topic import (
    TopicRecord,
    ensure_checkpoint_topic,
    known_to_controller,
    read_checkpoints,
    topic_id,
)
from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.config.model import default_checkpoint_topic
from harvest_lib.delivery import CheckpointPlace
from harvest_lib.errors import (
    CheckpointError,
    KafkaAccessDenied,
    KafkaUnavailable,
    ServerRegressed,
    TopicMissing,
    TransactionOpen,
)
from harvest_lib.kafka_client import KafkaConsumerProvider, is_refusal, topic_partitions
from harvest_lib.kafka_offsets.open_transactions import settled_ends
from harvest_lib.outbox.identity import difference
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.server_identity import timeline

_log = logging.getLogger(__name__)

_MARKERS_SECONDS = 5.0
"""Longest wait for the markers that end a transaction. Kafka writes them milliseconds after the commit or abort."""
_ANSWER_SECONDS = 2.0
"""Timeout of a request to Kafka. A stop waits for the current request. A request that times out is repeated."""

_CATCH_UP_SECONDS = 5.0
"""Time after which a broker that has just restarted has the metadata of all topics."""
_AGAIN_SECONDS = 0.2

_VOUCH_SECONDS = 0.2
"""If the row's last write is older than this, the row is written again before a checkpoint is sent to Kafka. So the row
shows whether the server was restored to an earlier time."""


class KafkaStore(PostgresCheckpointStore):
    """`CheckpointStore` in the checkpoint topic: each checkpoint is part of the transaction of its batch. `outbox` is
    the name of database and table, for errors. `kafka` are the user's settings for Kafka clients."""

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
        self._vouch_at = 0.0

    def load(self) -> OutboxCheckpoint:
        self._acknowledge_again()
        place = self._place
        under = {"group": self._group, "topic": place.topic, "topic_id": self._topic_id()}
        choice = self._choice(self._mirror, under)
        timeline = {} if choice.timeline is None else {"timeline": choice.timeline}
        self._checkpoints.authors.add(kafka={name: value for name, value in under.items() if value}, **timeline)
        try:
            self._refuse_hidden()
            record = self._read(choice)
        except TopicMissing:  # the topic existed at the start
            record = self._read_anew(choice)
        newest = choice.newest(record)
        self._checkpoints.require(newest)
        if self._mirror.position is None and newest.position is not None:
            self.save(newest)  # the row was created again: `vouch` needs a checkpoint in the row
        return newest

    def _refuse_hidden(self) -> None:
        """Wait until consumers of committed records can read the shard's whole partition.

        Raises CheckpointError if a transaction in the partition hangs. When a leader has begun, all transactions of
        harvesters have ended, and no other program writes to the partition. So a transaction that is still open
        *hangs*: Kafka failed to end it, and never will. It may contain the valid checkpoint. If the leader continued
        from an earlier checkpoint, records that are in Kafka would be sent again.
        """
        place = self._place
        if self._is_placed:  # an operator has rewound the subscription, perhaps because of this error
            return
        try:
            settled_ends(
                self._kafka,
                [(place.topic, place.partition)],
                patience_seconds=_MARKERS_SECONDS,
                timeout_seconds=_ANSWER_SECONDS,
            )
        except KafkaUnavailable:
            if place.partition < topic_partitions(self._kafka).get(place.topic, 0):
                raise
            # The partition is missing: the next read reports that.
        except TransactionOpen as error:
            raise CheckpointError(
                f"{self._where} is hidden behind a transaction that hangs: Kafka forgot to end it",
                evidence=error.evidence,
                next_step="end it with `kafka-transactions.sh find-hanging` and `abort`, in the records' topics too; "
                "that takes back what it sent, so go back to before it: `harvest subscriptions rewind "
                f"{self._name} --to SNAPSHOT`",
            ) from error

    @property
    def _is_placed(self) -> bool:
        """True if an operator has set the mirror, for example by a rewind."""
        return self._mirror.kept_in == "postgres" and bool(self._mirror.origin.get("placed"))

    @property
    def _name(self) -> str:
        return self._checkpoints.subscription.name

    @property
    def _where(self) -> str:
        return f"the checkpoint {self._place.key!r} in topic {self._place.topic!r}"

    def refuse_another(self, *, lost: bool = False, tell: bool = True) -> None:
        """Raise CheckpointError if the checkpoint in Kafka belongs to another outbox. With `lost`, also raise
        CheckpointError if Kafka lacks the checkpoint of which the mirror is a copy. Raise ServerRegressed if the server
        lacks records before the checkpoint in Kafka. With `tell`, store that reason in the row. This check fences no
        leader."""
        mirror, place = self._checkpoints.look(), self._place
        choice = self._choice(mirror, {"group": self._group, "topic": place.topic, "topic_id": self._topic_id()})
        found: Sequence[TopicRecord] = ()
        try:
            found = self._find_surely(choice) if lost and mirror.kept_in == "kafka" else self._find(choice)
        except TopicMissing as error:
            if isinstance(error.__cause__, KafkaException) and is_refusal(error.__cause__.args[0]):
                return  # this user may not see the topic: other checks report that
        for each in found:
            if "identity" in each.record:  # a record without an identity is refused later, by a leader
                choice.check_outbox(each.record)
                self._refuse_regressed(each.record, tell=tell)
        if lost and not found:
            choice.newest(None)

    def _find_surely(self, choice: CheckpointChoice) -> Sequence[TopicRecord]:
        """Read Kafka's checkpoints. If the topic seems to be missing, query the controller, and read again for up to
        `_CATCH_UP_SECONDS`. Then raise KafkaUnavailable if the controller has the topic and only a broker lacks it;
        else raise TopicMissing."""
        deadline = Deadline(_CATCH_UP_SECONDS)
        while True:
            try:
                return self._find(choice)
            except TopicMissing as error:
                is_there = known_to_controller(self._kafka, self._place.topic)
                if is_there and deadline.passed:
                    raise KafkaUnavailable(
                        f"a broker does not know the checkpoint topic {self._place.topic!r} yet, which is there",
                        evidence=f"{error.evidence}; the controller knows it",
                        next_step="wait until the broker has caught up, and start again",
                    ) from error
                if is_there is False or deadline.passed:
                    raise
            time.sleep(_AGAIN_SECONDS)

    def _refuse_regressed(self, record: Mapping[str, Any], *, tell: bool) -> None:
        """Raise ServerRegressed or CheckpointError if the row or the server is older than a checkpoint in Kafka. The
        row is read after the checkpoint, since a live leader may be writing both."""
        choice, theirs = self._choice(self._checkpoints.look()), OutboxCheckpoint.of_json(record)
        if theirs.generation != choice.mirror.generation:
            return
        self._check_witness(choice, record, tell=tell)
        counts = choice.mirror.kept_in == "kafka" or theirs.number > choice.mirror.number
        if counts and choice.owns(record) and not choice.judge(record):
            self._checkpoints.require(theirs, tell=tell)

    def _check_witness(self, choice: CheckpointChoice, record: Mapping[str, Any], *, tell: bool = True) -> None:
        if not choice.owns(record):
            return
        try:
            choice.check_witness(record)
        except ServerRegressed as error:
            if tell:
                self._checkpoints.remember(OutboxCheckpoint.of_json(record), error)
            raise

    def _read_anew(self, choice: CheckpointChoice) -> Mapping[str, Any] | None:
        """Create the topic if it is missing, and read again. If it is still missing, raise a temporary error: a broker
        that has just restarted may not have the topic yet, or this user may not see it."""
        try:
            ensure_checkpoint_topic(self._kafka, self._place.topic, self._place.partition + 1)
            return self._read(choice)
        except TopicMissing as error:
            refused = isinstance(error.__cause__, KafkaException) and is_refusal(error.__cause__.args[0])
            kind = KafkaAccessDenied if refused else KafkaUnavailable
            raise kind(error.cause, evidence=error.evidence, next_step=error.next_step) from error

    def _read(self, choice: CheckpointChoice) -> Mapping[str, Any] | None:
        """Return the last checkpoint in Kafka, or None. If it cannot come from a leader of this subscription, raise
        CheckpointError. But if an operator has set the mirror, return the last valid checkpoint instead."""
        found = self._find(choice, to_sound=self._is_placed)
        if not found:
            return None
        if last := found[-1 if self._is_placed else 0].record:
            self._check_witness(choice, last)
        if self._is_placed or not found[0].trouble:
            self._checkpoints.forget_leaders(found[-1].record)
            if choice.is_of_another_timeline(found[-1].record):
                _log.warning("standby_was_promoted", extra={"timeline": choice.timeline, "checkpoint": self._where})
            return found[-1].record
        if self._mirror.position is None:
            raise CheckpointError(
                f"Kafka has a checkpoint of the subscription {self._name!r}, which is new in Postgres",
                evidence=f"{self._where}, offset {found[0].offset}: {found[0].trouble}",
                next_step="if it was removed, or its row was lost, choose where it begins: "
                f"{begin_anew(self._name)}; records that are delivered again from there come twice",
            )
        raise CheckpointError(
            f"what is {self._where} was not written by a leader of this subscription",
            evidence=f"topic {self._place.topic}, partition {self._place.partition}, offset {found[0].offset}: "
            f"{found[0].trouble}",
            next_step="check which principals may write to that topic, and whether Postgres was restored or failed "
            "over, and lacks the last writes: then the checkpoint may be right, and `harvest audit` compares Kafka "
            "with the outbox; continue from the mirror in Postgres, which may repeat records delivered since: "
            f"{begin_anew(self._name, self._mirror)}",
        )

    def _find(self, choice: CheckpointChoice, *, to_sound: bool = False) -> Sequence[TopicRecord]:
        place = self._place
        return read_checkpoints(
            self._kafka,
            place.topic,
            place.partition,
            place.key,
            self._consumer_provider,
            judge=choice.judge,
            to_sound=to_sound,
            hear_other=partial(self._refuse_shared, choice),
        )

    def _refuse_shared(self, choice: CheckpointChoice, record: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a record with another key belongs to another outbox, or to another group and
        subscription with the same default topic. A renamed subscription of this group may continue to use its topic."""
        group, name = (record.get("kafka") or {}).get("group"), record.get("subscription")
        ours, theirs = (self._group, self._name), (group, name)
        is_one_name = all(default_checkpoint_topic(*map(str, each)) == self._place.topic for each in (ours, theirs))
        if (is_one_name and ours != theirs) or not choice.owns(record):
            raise CheckpointError(
                f"two configurations share the checkpoint topic {self._place.topic!r}, and would fence each other",
                evidence=f"it has a checkpoint by `leaderGroupID` {group!r} with `subscription` {name!r} of "
                f"{record.get('outbox')} ({record.get('identity')}); this is {self._group!r} with {self._name!r} of "
                f"{self._outbox} ({choice.identity})",
                next_step="set `checkpointTopic` in this configuration to a name of its own; if the other subscription "
                "is gone permanently, delete the topic",
            )

    def _choice(self, mirror: OutboxCheckpoint, written_under: Mapping[str, Any] | None = None) -> CheckpointChoice:
        checkpoints, authors = self._checkpoints, self._checkpoints.authors
        choice = CheckpointChoice(mirror=mirror, place=self._where, outbox=self._outbox)
        if (identity := authors.identity) is None:
            return choice
        connection = checkpoints.connected()
        return replace(
            choice,
            identity=identity,
            subscription=checkpoints.subscription.name,
            shard=checkpoints.subscription.shard,
            source=checkpoints.subscription.source,
            timeline=timeline(connection),
            leaders=authors.leaders,
            difference=lambda record: difference(connection, record, identity),
            written_under=written_under or {},
        )

    def _topic_id(self) -> str | None:
        return topic_id(self._kafka, self._place.topic) if self._checkpoints.authors.identity is not None else None

    def _vouch(self) -> bool:
        if boot_seconds() < self._vouch_at:
            return True
        return self._written(self._checkpoints.vouch())

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        return self._written(super().save(checkpoint))

    def _written(self, was_written: bool) -> bool:  # noqa: FBT001 - an outcome that the caller returns
        self._vouch_at = boot_seconds() + _VOUCH_SECONDS if was_written else 0.0
        return was_written

    def encode(self, checkpoint: OutboxCheckpoint) -> bytes | None:
        """Return a checkpoint as the record to send in the transaction of its batch. First write the row, if its last
        write is `_VOUCH_SECONDS` old. Return None if that write is refused because another leader leads, or because the
        subscription was rewound."""
        if not self._vouch():
            return None
        checkpoints = self._checkpoints
        signed = {**checkpoint.as_json(), **checkpoints.authors.origin, "witness": checkpoints.witness}
        return compact({**signed, "outbox": self._outbox}).encode()
