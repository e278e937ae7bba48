"""A guarantee that passes everything on to another one: the base of those that also take notes."""

from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from harvest_lib.batching.guarantees import Guarantee
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.delivery import BatchOutcome
from harvest_lib.record import Row


class WrappedGuarantee:
    """`Guarantee` by another one."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.exactly_once = guarantee.exactly_once
        self._guarantee = guarantee

    @property
    def store(self) -> CheckpointStore:
        return self._guarantee.store

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        return self._guarantee.begin(leader_id, may_send)

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._guarantee.send(rows, may_send)

    def commit(self, checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        return self._guarantee.commit(checkpoint, may_send)

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        return self._guarantee.settle(may_send)

    def abandon(self) -> bool:
        return self._guarantee.abandon()

    @property
    def failed_keys(self) -> Collection[bytes] | None:
        return self._guarantee.failed_keys
