"""A guarantee whose batches are observed: counted, and traced. What an observer raises costs its own observation."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol
from uuid import UUID

from harvest_lib.batching.guarantees import Guarantee
from harvest_lib.checkpoints.record import Checkpoint
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.clock import boot_seconds
from harvest_lib.delivery import BatchOutcome
from harvest_lib.record import Row
from harvest_lib.telemetry.harmless import Harmless

_log = logging.getLogger(__name__)


class BatchObserver(Protocol):
    """Takes notes of the batches of one shard."""

    def handing_over(self, rows: Sequence[Row], /) -> None:
        """Take rows of a batch that are about to be handed over."""
        ...

    def committed(self, outcome: BatchOutcome, began: float, /) -> None:
        """Take a commit that began at a time and has just ended."""
        ...

    def abandoned(self, *, repeats: bool) -> None:
        """Forget the open batch; its records may be sent again, to be seen twice if that `repeats`."""
        ...


class ObservedGuarantee:
    """`Guarantee` by another one, whose batches are observed."""

    def __init__(self, guarantee: Guarantee, observers: Sequence[BatchObserver]) -> None:
        self.exactly_once = guarantee.exactly_once
        self._guarantee = guarantee
        self._observers = observers
        self._harmless = Harmless(_log, "batch_not_observed")

    @property
    def store(self) -> CheckpointStore:
        return self._guarantee.store

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        return self._guarantee.begin(leader_id, may_send)

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        for observer in self._observers:
            with self._harmless:
                observer.handing_over(rows)
        return self._guarantee.send(rows, may_send)

    def commit(self, checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        began = boot_seconds()
        outcome = self._guarantee.commit(checkpoint, may_send)
        for observer in self._observers:
            with self._harmless:
                observer.committed(outcome, began)
        return outcome

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        return self._guarantee.settle(may_send)

    def abandon(self) -> bool:
        may_arrive = self._guarantee.abandon()
        for observer in self._observers:
            with self._harmless:
                observer.abandoned(repeats=not self.exactly_once)
        return may_arrive

    @property
    def failed_keys(self) -> Collection[bytes] | None:
        return self._guarantee.failed_keys
