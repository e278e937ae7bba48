"""A guarantee, and a delivery, that pass everything on to another one: the base of those that also take notes."""

from collections.abc import Callable, Sequence

from harvest_lib.batching.guarantees import Guarantee
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.delivery import BatchOutcome, Delivery
from harvest_lib.delivery.protocol import Reports
from harvest_lib.record import Row
from harvest_lib.record.rows import RowQueue


class WrappedGuarantee:
    """`Guarantee` by another one."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.exactly_once = guarantee.exactly_once
        self._guarantee = guarantee
        self.begin, self.settle = guarantee.begin, guarantee.settle

    @property
    def store(self) -> CheckpointStore:
        return self._guarantee.store

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._guarantee.send(rows, may_send)

    def commit(self, checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        return self._guarantee.commit(checkpoint, may_send)

    def abandon(self) -> bool:
        return self._guarantee.abandon()


class WrappedDelivery:
    """`Delivery` by another one."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.begin, self.close = delivery.begin, delivery.close

    @property
    def takes(self) -> bool:
        return self._delivery.takes

    def send(self, rows: RowQueue, may_send: Callable[[], bool]) -> None:
        self._delivery.send(rows, may_send)

    def poll(self, timeout_seconds: float) -> Reports:
        reports = self._delivery.poll(timeout_seconds)
        self.heard(reports)
        return reports

    def abandon(self) -> Reports:
        reports = self._delivery.abandon()
        self.heard(reports)
        return reports

    def heard(self, reports: Reports) -> None:
        """Take in the outcome of records."""
