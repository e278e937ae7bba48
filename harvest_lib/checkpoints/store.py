"""What the batch loop asks of the store of its checkpoints."""

from typing import Protocol
from uuid import UUID

from harvest_lib.checkpoints.table import Checkpoint, LeadershipStatus
from harvest_lib.delivery import Offer


class CheckpointStore(Protocol):
    """Where the checkpoints of one subscription and shard are kept. `kept_in` names it: `postgres` or `kafka`."""

    kept_in: str

    def lead(self, leader_id: UUID) -> None:
        """Fence whoever led before. Raises DatabaseUnavailable."""
        ...

    def leadership_status(self) -> LeadershipStatus:
        """Tell whether somebody has fenced us since, or moved the subscription. Raises DatabaseUnavailable."""
        ...

    def load(self) -> Checkpoint:
        """Return the last checkpoint, once the delivery has begun: then no other leader can add one. Readers see all
        that it has passed. Raises KafkaUnavailable or KafkaAccessDenied."""
        ...

    def offer(self, checkpoint: Checkpoint) -> Offer:
        """Return how the checkpoint goes with its batch."""
        ...

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint to Postgres; False if we were fenced, or the subscription was moved."""
        ...

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        ...
