"""Checkpoints of a term: the last committed checkpoint, the last checkpoint in Postgres, and the right to save more.

Promises
- The previous leader is fenced once, before anything is read.
- A checkpoint that is committed together with its batch is authoritative at once. A save in Postgres that nothing waits
  for, such as the mirror of that checkpoint, is due at most five times a second.
"""

from dataclasses import replace
from uuid import UUID

from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.checkpoints.table import LeadershipStatus
from harvest_lib.clock import boot_seconds
from harvest_lib.errors import CheckpointError, ServerRegressed
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import Position

_SAVE_SECONDS = 0.2
"""Least interval between two saves in Postgres that nothing waits for."""
_CHECK_SECONDS = 1.0
"""Interval between checks of the subscription's row. They show whether an operator has moved the subscription."""


class TermCheckpoints:
    """Checkpoints of a term in a store. Methods raise DatabaseUnavailable."""

    def __init__(self, store: CheckpointStore) -> None:
        self.last = OutboxCheckpoint(generation=0)
        """The last committed checkpoint."""
        self.position: Position = {}
        """The source's position after the last committed batch, without deferred ids."""
        self.lowest_parked: int | None = None
        """The lowest parked id in the last checkpoint."""
        self._store = store
        self._saved_number = -1  # of the checkpoint in Postgres
        self._save_at = self._check_at = 0.0
        self._has_led = False

    @property
    def epoch(self) -> int | None:
        """Return the epoch under which this term led last; None without epochs."""
        return self._store.epoch

    @property
    def keeps_positions(self) -> bool:
        """Return True if checkpoints contain positions. Return False if only the table records which rows are
        delivered."""
        return self._store.keeps_positions

    @property
    def is_elsewhere(self) -> bool:
        """Return True if the next checkpoint is stored in another location (Postgres or Kafka) than the last. Then
        other processes have to find the new location."""
        return self.last.kept_in != self._store.kept_in

    @property
    def is_check_due(self) -> bool:
        """Return True if the subscription's row was not checked for a second."""
        return boot_seconds() >= self._check_at

    @property
    def is_save_due(self) -> bool:
        """Return True if nothing was saved for a fifth of a second."""
        return boot_seconds() >= self._save_at

    @property
    def is_saved(self) -> bool:
        """Return True if the last checkpoint is in Postgres."""
        return self._saved_number == self.last.number

    def lead(self, leader_id: UUID, after_epoch: int | None) -> None:
        """Fence the previous leader, in the first call only."""
        if not self._has_led:
            self._store.lead(leader_id, after_epoch)
            self._has_led = True

    def status(self) -> LeadershipStatus:
        """Return the status of this leader according to the subscription's row."""
        self._check_at = boot_seconds() + _CHECK_SECONDS
        return self._store.leadership_status()

    def load(self) -> OutboxCheckpoint | None:
        """Return the last checkpoint. Return None if the checkpoint does not fit the subscription's row, because
        another leader has begun or the subscription was moved. Raises KafkaUnavailable, KafkaAccessDenied,
        CheckpointError and ServerRegressed."""
        try:
            return self._store.load()
        except (CheckpointError, ServerRegressed):
            if self.status() is LeadershipStatus.LEADS:
                raise
            return None

    def begin(self, loaded: OutboxCheckpoint) -> None:
        """Start from a loaded checkpoint."""
        self.last, self._saved_number = loaded, loaded.number

    def begin_at(self, following: OutboxCheckpoint) -> None:
        """Start from the first checkpoint of the subscription. It is stored in Postgres, even if the checkpoints of
        later commits are stored in Kafka."""
        self.last = replace(following, kept_in="postgres")

    def following(
        self, position: Position, delivered: int, *, low_watermark: str, retention_hold: int | None
    ) -> OutboxCheckpoint:
        """Return the next checkpoint, at `position`. It counts `delivered` more records than the last checkpoint. The
        other arguments are fields of `OutboxCheckpoint`."""
        return OutboxCheckpoint(
            generation=self.last.generation,
            number=self.last.number + 1,
            position=position,
            delivered=self.last.delivered + delivered,
            low_watermark=low_watermark,
            retention_hold=retention_hold,
            kept_in=self._store.kept_in,
        )

    def save(self) -> bool:
        """Save the last checkpoint in Postgres. Return False if Postgres refuses the checkpoint, because the leader was
        fenced or the subscription was moved."""
        number = self.last.number
        if not self._store.save(self.last):
            return False
        self._saved_number, self._save_at = number, boot_seconds() + _SAVE_SECONDS
        return True

    def close(self) -> None:
        """Close the store's connection."""
        self._store.close()
