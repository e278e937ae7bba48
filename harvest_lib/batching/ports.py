"""What a term by laps works with: source, delivery, the store of its checkpoints, and what is set aside."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from harvest_lib.batching.marked_parking import MarkShelf
from harvest_lib.batching.parking import Shelf
from harvest_lib.checkpoints.store import Store
from harvest_lib.config import Limits
from harvest_lib.delivery import LapDelivery
from harvest_lib.events import Event
from harvest_lib.source import PagedSource


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
