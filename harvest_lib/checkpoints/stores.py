"""Checkpoint stores in Postgres, with or without pending acknowledgements, and a store that purges rows instead."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from harvest_lib.checkpoints.table import CheckpointTable, LeadershipStatus
from harvest_lib.clock import boot_seconds
from harvest_lib.errors import KafkaUnavailable
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.sequencing.publisher import Intent

Acknowledge = Callable[[Sequence[Intent]], Sequence[Intent]]
"""Function that writes acknowledgements and waits until Kafka has them. It returns the acknowledgements that were not
written, because their topic is missing or refuses them. Raises KafkaUnavailable."""

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
"""Time between two attempts to write pending acknowledgements, whose topic is missing or refuses them."""
_LEAP = 1_000_000_000


class PostgresCheckpointStore:
    """`CheckpointStore` in the table of subscriptions."""

    kept_in = "postgres"
    keeps_positions = True

    def __init__(self, checkpoints: CheckpointTable, acknowledge: Acknowledge) -> None:
        """`acknowledge` writes pending acknowledgements to Kafka. The row contains them if an earlier leader, with any
        delivery, may not have written them."""
        self._checkpoints = checkpoints
        self._acknowledge = acknowledge
        self._pending: Sequence[Sequence[Any]] = ()  # acknowledgements that could not be written yet
        self._ask_at = 0.0
        self._mirror = OutboxCheckpoint(generation=0)

    @property
    def epoch(self) -> int:
        return self._checkpoints.epoch

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> None:
        self._mirror = self._checkpoints.lead(leader_id, after_epoch)

    def leadership_status(self) -> LeadershipStatus:
        status, checkpoint = self._checkpoints.leadership_status()
        self._mirror = checkpoint or self._mirror
        return status

    def load(self) -> OutboxCheckpoint:
        self._checkpoints.require(self._mirror)
        self._acknowledge_again()
        if self._mirror.kept_in == "postgres":
            return self._mirror
        # The checkpoint in Kafka may be ahead of its mirror. So numbers continue above all numbers used in Kafka.
        return replace(self._mirror, number=self._mirror.number + _LEAP)

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        if self._pending and boot_seconds() >= self._ask_at:
            with suppress(KafkaUnavailable):  # a later save tries again
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
    """`CheckpointStore` of a table that is marked and delivered at least once: it purges the rows of a batch instead of
    storing a checkpoint.

    It stores nothing, since other processes of the pool may be goharvest. It fences no former leader. With the delivery
    `barrier`, the records in a former leader's queue expire within the session timeout. With `pipelined`, topics must
    reject late records.
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

    def load(self) -> OutboxCheckpoint:
        return OutboxCheckpoint(generation=0)

    def save(self, checkpoint: OutboxCheckpoint) -> bool:  # noqa: ARG002 - rows are purged instead
        self._purge()
        return True

    def close(self) -> None:
        pass


class IntentStore(PostgresCheckpointStore):
    """`CheckpointStore` in the table of subscriptions, for `delivery: sequenced`. It saves the checkpoint of a batch
    together with the acknowledgements that make the batch visible to consumers."""

    def load(self) -> OutboxCheckpoint:
        checkpoint = self._checkpoints.renew()
        if checkpoint is None:  # fenced, as `leadership_status` reports: the new leader writes the acknowledgements
            return self._mirror
        self._mirror = checkpoint
        return super().load()

    def save_pending(self, checkpoint: OutboxCheckpoint, intents: Sequence[Intent]) -> bool:
        """Save a checkpoint together with the acknowledgements of its batch. Return False if the save was refused."""
        return super().save(replace(checkpoint, intents=[intent.to_json() for intent in intents]))

    def ask_again(self) -> bool:
        """Try to write pending acknowledgements again, if `_ASK_SECONDS` have passed since the last attempt. Return
        False if the remaining acknowledgements could not be saved."""
        is_due = bool(self._pending) and boot_seconds() >= self._ask_at
        return not is_due or self.save_pending(self._mirror, ())

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        is_kept = (checkpoint.generation, checkpoint.number) == (self._mirror.generation, self._mirror.number)
        return is_kept or super().save(checkpoint)
