"""What a term by laps works with: source, delivery, the store of its checkpoints, and what is set aside."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from harvest_lib.checkpoint import Checkpoint, Standing
from harvest_lib.config import Limits
from harvest_lib.delivery import LapDelivery, Offer
from harvest_lib.events import Event
from harvest_lib.mark_shelf import MarkShelf
from harvest_lib.shelf import Shelf
from harvest_lib.source import PagedSource


class Store(Protocol):
    """Where the checkpoints of one subscription and shard are kept. `kept_in` names it: `postgres` or `kafka`."""

    kept_in: str

    def lead(self, leader_id: UUID) -> None:
        """Depose whoever led before. Raises DatabaseUnavailable."""
        ...

    def standing(self) -> Standing:
        """Tell whether somebody has deposed us since, or moved the subscription. Raises DatabaseUnavailable."""
        ...

    def stands(self) -> Checkpoint:
        """Return the last checkpoint, once the delivery has begun: then no other leader can add one. Readers see all
        that it has passed. Raises KafkaUnavailable or KafkaAccessDenied."""
        ...

    def offer(self, checkpoint: Checkpoint) -> Offer:
        """Return how the checkpoint goes with its lap."""
        ...

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint to Postgres; False if we were deposed, or the subscription was moved."""
        ...

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TailWiring:
    """What a term works with, and whom it tells."""

    source: PagedSource
    delivery: LapDelivery
    store: Store
    shelf: Shelf | MarkShelf
    limits: Limits
    one_per_key: bool
    """Whether the key barrier is up: at most one record of a key in flight."""
    exactly_once: bool
    """Whether what is in doubt is never seen by readers, unless its checkpoint counts."""
    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    """Told how many records were committed."""
    sight: Callable[[], AbstractContextManager[None]] = nullcontext
    """What the database is asked in: it may turn an error into another, see `harvest_lib.outbox.Sight`."""
