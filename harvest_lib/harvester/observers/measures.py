"""Metrics that a harvester counts, and the batch observer that updates them.

No work is done for each record: slices of a batch are counted when they are handed over, and whole batches when they
end. The latency from creation to acknowledgement is measured for a single record each second. The record is chosen when
it is handed over, and another thread queries the database for its age.
"""

import random
import threading
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import assert_never

from harvest_lib.clock import boot_seconds
from harvest_lib.delivery import BatchCommitted, BatchFailed, BatchFenced, BatchOutcome
from harvest_lib.events import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked, MeterRead
from harvest_lib.record import ID, Row
from harvest_lib.telemetry.counts import AGE_BOUNDS, Counts, Histogram

OUTCOMES = ("committed", "failed", "fenced")
END_REASONS = ("revoked", "fenced")
_LATENCY_EVERY_SECONDS = 1.0
"""Shortest time between two records chosen for the latency. For each chosen record, the database is queried once."""


class LatencySample:
    """A record chosen for the latency. `aged` stores the record's time of creation, and `acked` stores the time of its
    acknowledgement. The later of the two calls passes the latency to `observe`."""

    def __init__(self, record_id: int, observe: Callable[[float], None]) -> None:
        self.record_id = record_id
        self._observe = observe
        self._lock = threading.Lock()
        self._created_at: float | None = None  # boot seconds
        self._acked_at: float | None = None

    def aged(self, age_seconds: float, now: float) -> None:
        """Store the record's age at the time `now` (boot seconds). The age is measured by the database's clock."""
        with self._lock:
            self._created_at = now - age_seconds
            self._observe_if_known()

    def acked(self, now: float) -> None:
        """Store the time of the acknowledgement, in boot seconds."""
        with self._lock:
            self._acked_at = now
            self._observe_if_known()

    def _observe_if_known(self) -> None:
        if self._created_at is not None and self._acked_at is not None:
            self._observe(max(0.0, self._acked_at - self._created_at))


class HarvestMeasures:
    """The metrics of a harvester, over all its terms. The harvester's threads update them; any thread may read them."""

    def __init__(self) -> None:
        self.terms, self.refreshes, self.terms_ended = Counts(), Counts(), Counts()
        self.delivered, self.possible_duplicates, self.batches = Counts(), Counts(), Counts()
        self.batch_seconds, self.commit_seconds = Histogram(), Histogram()
        self.latency_seconds = Histogram(AGE_BOUNDS)
        self.samples: SimpleQueue[LatencySample | None] | None = None
        """Queue of chosen records, for the thread that queries the database; None if there is no such thread."""

    def count(self, shard: int, event: Event) -> None:
        """Count an event of a shard."""
        label = str(shard)
        match event:
            case LeaderAcquired():
                self.terms.add(label)
            case LeaderRefreshed():
                self.refreshes.add(label)
            case LeaderRevoked():
                self.terms_ended.add(label, "revoked")
            case LeaderFenced():
                self.terms_ended.add(label, "fenced")
            case MeterRead():
                pass
            case other:
                assert_never(other)

    def shard(self, number: int) -> "ShardMeasures":
        """Return the metrics of a shard, for the loop of the shard to update."""
        return ShardMeasures(self, str(number))


class ShardMeasures:
    """The metrics of a shard during a term: a `BatchObserver` of the loop's batches. Only the loop's thread uses it."""

    def __init__(self, measures: HarvestMeasures, label: str) -> None:
        self._measures = measures
        self._label = label
        self._sent = 0  # number of records of the current batch that were handed over
        self._began_at = 0.0
        self._chosen: LatencySample | None = None
        self._choose_at = 0.0

    def choose(self, rows: Sequence[Row], place: int, now: float) -> None:
        """Queue the record `rows[place]` for the latency, if the next measurement is due."""
        samples = self._measures.samples
        if samples is None or now < self._choose_at or self._chosen is not None:
            return
        self._choose_at = now + _LATENCY_EVERY_SECONDS
        observe = self._measures.latency_seconds.observe
        self._chosen = LatencySample(rows[place][ID], lambda seconds: observe(seconds, self._label))
        samples.put(self._chosen)

    def acked(self, now: float) -> None:
        """Store that the chosen record, if there is one, was acknowledged at the time `now`."""
        if self._chosen is not None:
            self._chosen.acked(now)
            self._chosen = None

    def handing_over(self, rows: Sequence[Row]) -> None:
        """Count rows of the current batch that are about to be handed over to Kafka."""
        if rows and not self._sent:
            self._began_at = boot_seconds()
            self.choose(rows, random.randrange(len(rows)), self._began_at)  # noqa: S311 - any will do
        self._sent += len(rows)

    def committed(self, outcome: BatchOutcome, began: float) -> None:
        """Count the end of a batch. Its commit began at `began` and has just ended."""
        now = boot_seconds()
        if not self._sent:
            return
        match outcome:
            case BatchCommitted():
                self._measures.batches.add(self._label, "committed")
                self._measures.batch_seconds.observe(now - self._began_at, self._label)
                self._measures.commit_seconds.observe(now - began, self._label)
                self._sent = 0
                self.acked(now)
            case BatchFailed():
                self._measures.batches.add(self._label, "failed")
            case BatchFenced():
                self._measures.batches.add(self._label, "fenced")
            case other:
                assert_never(other)

    def delivered_except(self, failed: Collection[int], /) -> None:
        """Do nothing: the loop counts these records, and `abandoned` says whether the others are repeated."""

    def abandoned(self, *, repeats: bool) -> None:
        """Reset the counts of the current batch. If `repeats`, count its records as possible duplicates."""
        if self._sent and repeats:
            self._measures.possible_duplicates.add(self._label, amount=self._sent)
        self._sent = 0
        self._chosen = None
