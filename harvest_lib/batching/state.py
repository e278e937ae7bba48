"""What the batch loop remembers from batch to batch, and what its steps tell each other."""

from dataclasses import dataclass, field
from typing import NamedTuple

from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.record import Row
from harvest_lib.source import Position


@dataclass(slots=True)
class BatchState:
    """Where a term is. Times are those of `boot_seconds`."""

    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(generation=0))
    """The last one that was committed."""
    position: Position = field(default_factory=dict)
    """The source's, after the last batch that was committed."""
    saved_number: int = -1
    """Of the checkpoint that is in Postgres."""
    save_at: float = 0.0
    """When the checkpoint is to be saved next."""
    check_at: float = 0.0
    """When the row of the subscription is to be checked next."""

    has_led: bool = False
    """Whether the epoch was raised for this term."""
    is_open: bool = False
    """Whether delivery and source are ready: False before the first batch and after each failure."""
    was_fenced: bool = False
    """Whether another leader has taken over."""
    caught_up: bool = False
    """Whether the source had nothing more since it was opened: what is parked does not come from it again."""
    was_redelivery: bool = False
    """Whether the last batch was tried as a redelivery."""

    last_sent: Row | None = None
    """The last record that was sent in this batch."""
    lowest_told: int | None = None
    """The lowest parked id, as the last checkpoint has it."""
    in_doubt: int = 0
    """Records of batches that failed since the last that was committed."""


class Read(NamedTuple):
    """What became of a page: its bytes, whether all of it went that may go now, and what the source said of it."""

    size: int
    went: bool
    position: Position
    more: bool


class Filled(NamedTuple):
    """A batch that was sent: the position after it, None if there is nothing to commit, and whether there is more."""

    position: Position | None
    more: bool


@dataclass(slots=True)
class InFlight:
    """What has been sent in this batch; may be read from outside."""

    records: int = 0

    @property
    def keys(self) -> list[str]:
        """Return nothing: batches do not follow keys."""
        return []
