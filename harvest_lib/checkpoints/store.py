"""Protocol between the batch loop and the store of its checkpoints."""

from typing import Protocol
from uuid import UUID

from harvest_lib.checkpoints.table import LeadershipStatus
from harvest_lib.record.checkpoint import OutboxCheckpoint


class CheckpointStore(Protocol):
    """Store of the checkpoints of a subscription's shard. `kept_in` names it: `postgres` or `kafka`."""

    kept_in: str
    keeps_positions: bool
    """False if the table alone shows which records are delivered: positions are not read again."""

    @property
    def epoch(self) -> int | None:
        """Return the epoch under which this process led last; None without epochs."""
        ...

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> None:
        """Fence the previous leader; if another has raised the epoch since it was `after_epoch`, this leader is fenced.
        Raises DatabaseUnavailable."""
        ...

    def leadership_status(self) -> LeadershipStatus:
        """Return the status: leading, fenced, or the subscription was moved. Raises DatabaseUnavailable."""
        ...

    def load(self) -> OutboxCheckpoint:
        """Return the last checkpoint, once the delivery has begun: then no other leader can add a checkpoint. Readers
        see all records that it has passed. Raises KafkaUnavailable or KafkaAccessDenied."""
        ...

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        """Write a checkpoint to Postgres; False if this leader was fenced, or the subscription was moved."""
        ...

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        ...
