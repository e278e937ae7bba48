"""State of the batch loop between batches, and the results of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harvest_lib.errors import HarvestError
from harvest_lib.record import Row
from harvest_lib.source import Position


@dataclass(slots=True)
class BatchState:
    """Progress of a term."""

    position: Position = field(default_factory=dict)
    """The source's, after the last batch that was committed."""
    is_open: bool = False
    """True if delivery and source are ready: False before the first batch and after each failure."""
    was_fenced: bool = False
    """True if this leader was fenced, by the epoch or by Kafka."""
    caught_up: bool = False
    """True if the source has had nothing more since it was opened: it does not bring parked records again."""
    was_redelivery: bool = False
    """True if the last batch was tried as a redelivery."""

    error: HarvestError | None = None
    """The error that ends this term, once the batch before it is committed."""
    unsent: Sequence[int] = ()
    """Ids of records of this batch that are passed by its position and are still to be sent: those that failed, or that
    were not handed over as the term had ended or a stop was asked for."""
    last_sent: Row | None = None
    """The last record that was sent in this batch."""
    lowest_told: int | None = None
    """The lowest parked id, as the last checkpoint has it."""
    in_doubt: int = 0
    """Records of batches that failed since the last that was committed."""


class Read(NamedTuple):
    """The outcome of a page: its bytes, True if all admissible rows went, and the source's position and `more`."""

    size: int
    went: bool
    position: Position
    more: bool


class Filled(NamedTuple):
    """A batch that was sent: the position after it, None if there is nothing to commit, and whether there is more."""

    position: Position | None
    more: bool
