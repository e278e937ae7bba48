"""Observers of a shard's batches, for counts and spans. An error in an observer loses that observation alone."""

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from harvest_lib.delivery import BatchOutcome
from harvest_lib.record import Row
from harvest_lib.telemetry.harmless import Harmless

_log = logging.getLogger(__name__)


class BatchObserver(Protocol):
    """Observer of a shard's batches. Only the thread of the shard's loop calls it."""

    def handing_over(self, rows: Sequence[Row], /) -> None:
        """Note rows of a batch that are about to be handed over."""
        ...

    def committed(self, outcome: BatchOutcome, began: float, /) -> None:
        """Note a commit that has just ended. `began` is its start in boot seconds."""
        ...

    def delivered_except(self, failed: Collection[int], /) -> None:
        """Note that the records of a failed batch are in Kafka, except the records with the ids `failed`. `abandoned`
        follows."""
        ...

    def abandoned(self, *, repeats: bool) -> None:
        """Forget the open batch. With `repeats`, readers may see its records twice."""
        ...


class BatchObservers:
    """`BatchObserver` that passes each call to several observers. An observer's error is logged as
    `batch_not_observed`."""

    def __init__(self, observers: Sequence[BatchObserver] = ()) -> None:
        self._observers = observers
        self._harmless = Harmless(_log, "batch_not_observed")

    def handing_over(self, rows: Sequence[Row]) -> None:
        for observer in self._observers:
            with self._harmless:
                observer.handing_over(rows)

    def committed(self, outcome: BatchOutcome, began: float) -> None:
        for observer in self._observers:
            with self._harmless:
                observer.committed(outcome, began)

    def delivered_except(self, failed: Collection[int]) -> None:
        for observer in self._observers:
            with self._harmless:
                observer.delivered_except(failed)

    def abandoned(self, *, repeats: bool) -> None:
        for observer in self._observers:
            with self._harmless:
                observer.abandoned(repeats=repeats)
