"""Protocol between the batch loop and the store that keeps its checkpoints."""

from typing import Protocol
from uuid import UUID

from harvest_lib.checkpoints.table import LeadershipStatus
from harvest_lib.record.checkpoint import OutboxCheckpoint


class CheckpointStore(Protocol):
    """Store of the checkpoints of a subscription's shard. `kept_in` is the server that contains the checkpoints:
    `postgres` or `kafka`."""

    kept_in: str
    keeps_positions: bool
    """True if positions are stored. False if delivered records are purged: the outbox itself then shows which records
    remain."""

    @property
    def epoch(self) -> int | None:
        """The epoch of this process's last term as leader; None if the store has no epochs."""
        ...

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> None:
        """Raise the epoch, which fences the previous leader. If another leader has raised the epoch above
        `after_epoch`, nothing changes, and this leader is fenced. Raises DatabaseUnavailable."""
        ...

    def leadership_status(self) -> LeadershipStatus:
        """Return the status of this leader: it leads, it is fenced, or the subscription was rewound or given an end.
        Raises DatabaseUnavailable."""
        ...

    def load(self) -> OutboxCheckpoint:
        """Return the last checkpoint. Consumers can see all records before it. Call this only after the delivery has
        begun, because from then on no other leader can add a checkpoint. Raises KafkaUnavailable or
        KafkaAccessDenied."""
        ...

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        """Write a checkpoint to Postgres. Return False if this leader was fenced, or the subscription was rewound."""
        ...

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        ...
