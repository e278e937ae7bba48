"""Parts that a term in batches works with: its source, its delivery, the store of its checkpoints and its parking."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.observers import BatchObservers
from harvest_lib.batching.parking import BatchParking
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.config import Limits
from harvest_lib.delivery import Delivery
from harvest_lib.delivery.topic_troubles import Troubles
from harvest_lib.events import Event
from harvest_lib.source import BatchSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPorts:
    """Parts and callbacks of a term."""

    source: BatchSource
    delivery: Delivery
    store: CheckpointStore
    is_exactly_once: bool
    """True if readers see the records of a batch only once the batch's checkpoint is committed."""
    parking: BatchParking | MarkedParking
    troubles: Troubles
    """The topics in trouble that the delivery has found."""
    limits: Limits
    producers_are_outdated: Callable[[], bool] = lambda: False
    """Returns True if producers should be made again, because topics now take larger batches than the producers
    send."""
    one_per_key: bool
    """True if the key barrier is on: at most one record of a key in flight."""
    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    """Called with the number of records that were committed."""
    size: BatchSize = field(default_factory=BatchSize)
    """The size of batches. Successive terms share it, so that a size that Kafka did not take in time is not tried again
    in each term."""
    observers: BatchObservers = field(default_factory=BatchObservers)
    translate_errors: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns the context in which database calls run. The context may replace an error, see
    `translate_table_errors`."""
