"""Engine: the parts of a way of harvesting that stay from term to term, and the `BatchLoop` of each term.

| engine | source | a batch counts |
| --- | --- | --- |
| `PurgingEngine` | `mark`, at least once | once its rows are purged; nothing else is kept |
| `CheckpointEngine` | all others, and `mark` exactly once | once its checkpoint is kept |
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg

from harvest_lib.batching.batch_size import LARGEST_BATCH, BatchSize
from harvest_lib.batching.guarantees import Guarantee
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parking import BatchParking
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import Topics
from harvest_lib.events import Event
from harvest_lib.harvester.added_partitions import Added
from harvest_lib.harvester.measures import HarvestMeasures, ShardMeasures
from harvest_lib.harvester.observed import ObservedGuarantee
from harvest_lib.harvester.tracing import batch_tracing
from harvest_lib.leadership import Term
from harvest_lib.source import BatchSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Callbacks of a loop: leadership events, delivered counts and measures."""

    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    measures: ShardMeasures = field(default_factory=lambda: HarvestMeasures().shard(0))
    """The counts of its shard."""


class Engine(Protocol):
    """A way of harvesting."""

    def stand_by(self) -> None:
        """While others lead, see to it now and then that they lead our outbox, as we would. Raises CheckpointError or
        PoolConflict."""
        return

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> BatchLoop:
        """Return the loop of a term."""
        ...

    def backlog_age_seconds(self, connection: psycopg.Connection[Any]) -> float:
        """Return the age of the oldest record that waits, 0 if none does. Reads few rows. Raises HarvestError."""
        ...

    @property
    def added_partitions(self) -> Sequence[Added]:
        """Return the topics to which partitions were added, where only this process knows it."""
        return ()


def make_size(config: HarvestConfig, most: int = LARGEST_BATCH) -> BatchSize:
    """Return the size of a shard's batches, at most `most` records and no more than the limits that are set."""
    in_flight, read = config.limits.max_in_flight_records, config.limits.mark_query_records
    if in_flight is not None:  # one process may lead all shards
        most = min(most, max(1, in_flight // config.shards))
    return BatchSize(most, read)


def make_loop(
    config: HarvestConfig,
    term: Term,
    stopping: threading.Event,
    callbacks: Callbacks,
    *,
    source: BatchSource,
    guarantee: Guarantee,
    parking: BatchParking | MarkedParking,
    topics: Topics,
    size: BatchSize,
    translate_errors: Callable[[], AbstractContextManager[None]],
) -> BatchLoop:
    """Return the loop of a term over parts, with what counts and traces its batches."""
    ports = BatchPorts(
        source=source,
        guarantee=ObservedGuarantee(guarantee, [callbacks.measures, *batch_tracing(config, term.shard)]),
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
