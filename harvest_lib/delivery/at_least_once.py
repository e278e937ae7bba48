"""Delivery in batches, at least once, in order per partition, through an idempotent producer.

Promises
- A batch is committed when every in-sync replica has all of its records. Records of a failed batch may have arrived. So
  after a failure readers may see a run of records twice, but no gap in the run.
- The promises of `BatchProducer` hold.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from harvest_lib.delivery.client import ProducerKind
from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.delivery.protocol import Abandoned, BatchCommitted, BatchDeliverySettings, BatchOutcome
from harvest_lib.delivery.topics import Topics
from harvest_lib.record import Row
from harvest_lib.record.checkpoint import OutboxCheckpoint

_WIRE_SECONDS = 1.0


class AtLeastOnce:
    """`Delivery` without transactions. Raises ConfigError for a setting that librdkafka does not take."""

    def __init__(self, settings: BatchDeliverySettings, topics: Topics) -> None:
        kind = ProducerKind(settings=expiry_settings(settings.expiry_seconds), wire_seconds=_WIRE_SECONDS)
        self._producer = BatchProducer(settings, topics, kind)

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:  # noqa: ARG002 - it fences no leader
        self._producer.begin(leader_id)
        return BatchCommitted()

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._producer.hand_over(rows, may_send)

    def commit(self, _checkpoint: OutboxCheckpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        return self._producer.flush(may_send)

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:  # noqa: ARG002 - a commit has waited
        return BatchCommitted()

    def abandon(self) -> Abandoned:
        may_arrive = self._producer.discard()
        return Abandoned(may_arrive=may_arrive, failed_keys=self._producer.failures.failed_keys)


def expiry_settings(expiry_seconds: float | None) -> dict[str, object]:
    """Return the producer settings for the case that a leader is frozen. With `expiry_seconds`, queued records expire
    after this time. With None, a lost record stops the producer, so that no gap is left."""
    if expiry_seconds is not None:
        return {"message.timeout.ms": int(expiry_seconds * 1000)}
    return {"enable.gapless.guarantee": True, "message.timeout.ms": 0}
