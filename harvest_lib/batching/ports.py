"""Parts of a term in batches: its source, its guarantee and its parking."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.guarantees import Guarantee
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parking import BatchParking
from harvest_lib.config import Limits
from harvest_lib.delivery.topic_troubles import Troubles
from harvest_lib.events import Event
from harvest_lib.source import BatchSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPorts:
    """Parts and callbacks of a term."""

    source: BatchSource
    guarantee: Guarantee
    parking: BatchParking | MarkedParking
    troubles: Troubles
    """The topics in trouble, as the delivery finds them."""
    limits: Limits
    producers_are_outdated: Callable[[], bool] = lambda: False
    """Says if the delivery's producers should be made again: topics take larger batches than they were made for."""
    one_per_key: bool
    """True if the key barrier is on: at most one record of a key in flight."""
    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    """Called with the number of records that were committed."""
    size: BatchSize = field(default_factory=BatchSize)
    """Kept from term to term: a size that Kafka does not take in time is not tried again by each."""
    translate_errors: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of database calls: it may turn an error into another, see `translate_table_errors`."""
