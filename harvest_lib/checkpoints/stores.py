"""The stores of checkpoints in Postgres, with or without pending acknowledgements, and a store of nothing."""

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
"""Write acknowledgements, wait until Kafka has them, and return the rest, whose topic is missing or refuses them.
Raises KafkaUnavailable."""

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
"""Acknowledgements that are pending are tried again this often: their topic may be there, or take them, by now."""
_LEAP = 1_000_000_000


class PostgresCheckpointStore:
    """`CheckpointStore` in the table of subscriptions."""

    kept_in = "postgres"
    keeps_positions = True

    def __init__(self, checkpoints: CheckpointTable, acknowledge: Acknowledge) -> None:
        """`acknowledge` writes acknowledgements that an earlier leader may have left unwritten, by any delivery."""
        self._checkpoints = checkpoints
        self._acknowledge = acknowledge
        self._pending: Sequence[Sequence[Any]] = ()  # not writable yet: the topic may be there again some day
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
        # Kafka's may be ahead of its mirror: numbers continue from here, above all numbers that it has given.
        return replace(self._mirror, number=self._mirror.number + _LEAP)

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
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

    def load(self) -> OutboxCheckpoint:
        return OutboxCheckpoint(generation=0)

    def save(self, checkpoint: OutboxCheckpoint) -> bool:  # noqa: ARG002 - what it has passed is gone from the table
        self._purge()
        return True

    def close(self) -> None:
        pass


class IntentStore(PostgresCheckpointStore):
    """`CheckpointStore` in the table of subscriptions. Each batch's checkpoint is saved together with the
    acknowledgements that make readers see the batch."""

    def load(self) -> OutboxCheckpoint:
        checkpoint = self._checkpoints.renew()
        if checkpoint is None:  # the new leader acknowledges; `leadership_status` reports it
            return self._mirror
        self._mirror = checkpoint
        return super().load()

    def save_pending(self, checkpoint: OutboxCheckpoint, intents: Sequence[Intent]) -> bool:
        """Save a checkpoint with the acknowledgements that follow from it; False if it was refused."""
        return super().save(replace(checkpoint, intents=[intent.to_json() for intent in intents]))

    def ask_again(self) -> bool:
        """Write pending acknowledgements again, if it is time to; False if the result could not be saved."""
        is_due = bool(self._pending) and boot_seconds() >= self._ask_at
        return not is_due or self.save_pending(self._mirror, ())

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        is_kept = (checkpoint.generation, checkpoint.number) == (self._mirror.generation, self._mirror.number)
        return is_kept or super().save(checkpoint)
