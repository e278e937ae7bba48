"""What a term in batches works with: source, delivery, the store of its checkpoints, and what is parked."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parking import BatchParking
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.config import Limits
from harvest_lib.delivery import BatchDelivery
from harvest_lib.events import Event
from harvest_lib.source import BatchSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPorts:
    """What a term works with, and whom it tells."""

    source: BatchSource
    delivery: BatchDelivery
    store: CheckpointStore
    parking: BatchParking | MarkedParking
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
