"""Checkpoints of one term: the last one that was committed, the one that is in Postgres, and the right to write more.

Promises
- The previous leader is fenced once, before anything is read.
- Where the checkpoint goes along with the batch it is the one that counts. A mirror of it in Postgres, and the
  checkpoint of all other deliveries, is due at most five times a second.
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
"""A checkpoint in Postgres that nothing waits for is written no more often than this."""
_CHECK_SECONDS = 1.0
"""The row of the subscription is checked this often: somebody may have moved it."""


class TermCheckpoints:
    """Checkpoints of a term in a store. Methods raise DatabaseUnavailable."""

    def __init__(self, store: CheckpointStore) -> None:
        self.last = OutboxCheckpoint(generation=0)
        """The last one that was committed."""
        self.position: Position = {}
        """The source's, after the last batch that was committed: without deferred ids."""
        self.lowest_parked: int | None = None
        """The lowest parked id, as the last one has it."""
        self._store = store
        self._saved_number = -1  # of the one that is in Postgres
        self._save_at = self._check_at = 0.0
        self._has_led = False

    @property
    def epoch(self) -> int | None:
        """Return the epoch under which it led last; None without epochs."""
        return self._store.epoch

    @property
    def keeps_positions(self) -> bool:
        """Return False if the table alone says what is delivered."""
        return self._store.keeps_positions

    @property
    def is_elsewhere(self) -> bool:
        """Return True if the last one is not where the next ones are kept: others have to see where those are."""
        return self.last.kept_in != self._store.kept_in

    @property
    def is_check_due(self) -> bool:
        """Return True if the row of the subscription was not asked for a second."""
        return boot_seconds() >= self._check_at

    @property
    def is_save_due(self) -> bool:
        """Return True if nothing was saved for a fifth of a second."""
        return boot_seconds() >= self._save_at

    @property
    def is_saved(self) -> bool:
        """Return True if the last one is in Postgres."""
        return self._saved_number == self.last.number

    def lead(self, leader_id: UUID, after_epoch: int | None) -> None:
        """Fence the previous leader, if that is not done."""
        if not self._has_led:
            self._store.lead(leader_id, after_epoch)
            self._has_led = True

    def status(self) -> LeadershipStatus:
        """Return the answer of the subscription's row."""
        self._check_at = boot_seconds() + _CHECK_SECONDS
        return self._store.leadership_status()

    def load(self) -> OutboxCheckpoint | None:
        """Return the last checkpoint; None if it does not fit our row because another leader has come, or the
        subscription was moved. Raises KafkaUnavailable, KafkaAccessDenied, CheckpointError and ServerRegressed."""
        try:
            return self._store.load()
        except (CheckpointError, ServerRegressed):
            if self.status() is LeadershipStatus.LEADS:
                raise
            return None

    def begin(self, loaded: OutboxCheckpoint) -> None:
        """Go on from a checkpoint that was loaded."""
        self.last, self._saved_number = loaded, loaded.number

    def begin_at(self, following: OutboxCheckpoint) -> None:
        """Go on from the first one. Wherever later ones go: it is in Postgres alone until a batch is committed."""
        self.last = replace(following, kept_in="postgres")

    def following(
        self, position: Position, delivered: int, *, low_watermark: str, retention_hold: int | None
    ) -> OutboxCheckpoint:
        """Return the checkpoint so many records later. `OutboxCheckpoint` describes the other arguments."""
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
        """Write the last one to Postgres; False if that was refused: we were fenced, or the subscription was moved."""
        number = self.last.number
        if not self._store.save(self.last):
            return False
        self._saved_number, self._save_at = number, boot_seconds() + _SAVE_SECONDS
        return True

    def close(self) -> None:
        """Let go of the store's connection."""
        self._store.close()
