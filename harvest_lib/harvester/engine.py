"""Engine: the parts of a harvester that stay from term to term, and the `BatchLoop` of each term.

| engine | source | a batch counts |
| --- | --- | --- |
| `PurgingEngine` | `mark`, at least once | once its rows are purged; nothing else is kept |
| `CheckpointEngine` | `snapshot`, `transaction_id`, and `mark` exactly once | once its checkpoint is kept |
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from harvest_lib.batching.batch_size import LARGEST_BATCH, BatchSize
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.observers import BatchObservers
from harvest_lib.batching.parking import BatchParking
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import Delivery, Topics
from harvest_lib.events import Event
from harvest_lib.harvester.added_partitions import Added
from harvest_lib.harvester.measures import HarvestMeasures, ShardMeasures
from harvest_lib.harvester.tracing import batch_tracing
from harvest_lib.leadership import Term
from harvest_lib.source import BatchSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Callbacks of a loop: leadership events, delivered counts and measures."""

    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    measures: ShardMeasures = field(default_factory=lambda: HarvestMeasures().shard(0))
    """The counts of the loop's shard."""


class Engine(Protocol):
    """A way of harvesting."""

    def stand_by(self) -> None:
        """Check now and then that the present leaders lead the same outbox in the same way. Raises CheckpointError or
        PoolConflict."""
        return

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> BatchLoop:
        """Return the loop of a term."""
        ...

    @property
    def added_partitions(self) -> Sequence[Added]:
        """Return the topics to which partitions were added, where only this process knows it."""
        return ()


def make_size(config: HarvestConfig, most: int = LARGEST_BATCH) -> BatchSize:
    """Return the size of a shard's batches, at most `most` records and within the configured limits."""
    in_flight, read = config.limits.max_in_flight_records, config.limits.mark_query_records
    if in_flight is not None:  # a process may lead all shards
        most = min(most, max(1, in_flight // config.shards))
    return BatchSize(most, read)


def make_loop(
    config: HarvestConfig,
    term: Term,
    stopping: threading.Event,
    callbacks: Callbacks,
    *,
    source: BatchSource,
    delivery: Delivery,
    store: CheckpointStore,
    parking: BatchParking | MarkedParking,
    topics: Topics,
    size: BatchSize,
    translate_errors: Callable[[], AbstractContextManager[None]],
) -> BatchLoop:
    """Return the loop of a term over its parts, with the observers that count and trace its batches."""
    ports = BatchPorts(
        source=source,
        delivery=delivery,
        store=store,
        is_exactly_once=config.exactly_once and store.keeps_positions,
        observers=BatchObservers([callbacks.measures, *batch_tracing(config, term.shard)]),
        parking=parking,
        troubles=topics.troubles,
        producers_are_outdated=lambda: topics.is_producer_outdated,
        limits=config.limits,
        one_per_key=config.delivery == "barrier",
        emit=callbacks.emit,
        delivered=callbacks.delivered,
        size=size,
        translate_errors=translate_errors,
    )
    return BatchLoop(term, ports, stopping)
