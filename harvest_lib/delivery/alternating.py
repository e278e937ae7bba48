"""Two deliveries that take turns, batch by batch.

Kafka answers a commit once it is decided, and writes the marks that readers wait for afterwards. Until they are
written, which takes a few milliseconds, the same transactional id is refused its next transaction, and librdkafka asks
again only after 20. So the next batch is another id's.

Promises: those of the deliveries. A batch begins only when the one before was committed; beginning begins both, so when
it is over no earlier leader can commit anything. One that was frozen in between begins only the first, and fences its
successor under that alone.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from harvest_lib.delivery.protocol import TERM_OVER, BatchCommitted, BatchDeliverySettings, BatchOutcome, Delivery
from harvest_lib.delivery.topics import Topics
from harvest_lib.delivery.transactional import CheckpointPlace, Transactional
from harvest_lib.record import Row


class AlternatingProducers:
    """`Delivery` by several, of which each delivers the batch after the one before it."""

    failed_keys = None

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = list(deliveries)  # the first is the one whose turn it is

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        outcome: BatchOutcome = BatchCommitted()
        for each in self._deliveries:
            if not may_send():  # frozen meanwhile: each that begins fences the leader of now once more
                return TERM_OVER
            outcome = each.begin(leader_id, may_send)
            if not isinstance(outcome, BatchCommitted):
                break
        return outcome

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._deliveries[0].send(rows, may_send)

    def commit(self, checkpoint: bytes, may_send: Callable[[], bool], /) -> BatchOutcome:
        outcome = self._deliveries[0].commit(checkpoint, may_send)
        if isinstance(outcome, BatchCommitted):
            self._deliveries.append(self._deliveries.pop(0))
        return outcome

    def abandon(self) -> bool:
        may_arrive = [each.abandon() for each in self._deliveries]
        return any(may_arrive)


def exactly_once(
    settings: BatchDeliverySettings, topics: Topics, transactional_id: str, place: CheckpointPlace
) -> Delivery:
    """Return two `Transactional` in turn, under `transactional_id` and that with `.2` behind it."""
    ids = (transactional_id, f"{transactional_id}.2")
    return AlternatingProducers([Transactional(settings, topics, each, place) for each in ids])
