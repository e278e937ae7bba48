"""Guarantees of a subscription in batches: the way of its records, and the place of the checkpoint after them.

| class | records | their checkpoint |
| --- | --- | --- |
| `AtLeastOnceBatches` | pipelined | in Postgres, after they were acknowledged, five times a second; or their purge |
| `TransactionalBatches` | in a Kafka transaction | in that transaction; a mirror of it in Postgres |
| `SequencedBatches` | pending until acknowledged | in Postgres with the acknowledgements, before those leave |

A checkpoint goes down once: the loop calls `commit` with it, and the class does the rest.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol
from uuid import UUID

from harvest_lib.checkpoints.kafka_store import KafkaStore
from harvest_lib.checkpoints.store import CheckpointStore
from harvest_lib.checkpoints.stores import IntentStore
from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.clock import boot_seconds
from harvest_lib.delivery import TERM_OVER, BatchCommitted, BatchFailed, BatchOutcome, Delivery, Sequenced
from harvest_lib.record import Row

_CLEAR_SECONDS = 1.0
"""Acknowledgements that were written are removed from the checkpoint, and no more often than this."""
_REFUSED = "the checkpoint was refused: another leads, or the subscription was moved"


class Guarantee(Protocol):
    """A way into Kafka in batches, and the checkpoints that go with it. Used by one thread."""

    exactly_once: bool
    """True if records in doubt are never visible to readers, unless their checkpoint counts."""

    @property
    def store(self) -> CheckpointStore:
        """Return the store of the checkpoints."""
        ...

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        """Get ready to send under this leader id; a batch that was open before is gone. Fences nobody more once
        `may_send` says no."""
        ...

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over, in order, up to the first that the client itself refuses; return that, id and reason. Stops
        when `may_send` says no; then `commit` fails."""
        ...

    def commit(self, checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        """End the batch: wait until all of it is in Kafka, with the checkpoint if that goes along."""
        ...

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        """Wait until readers see all committed records. Called between batches, while nothing waits to be sent."""
        ...

    def abandon(self) -> bool:
        """Let nothing more leave; return True if records on the wire may still arrive, visible to readers. Safe to
        repeat."""
        ...

    @property
    def failed_keys(self) -> Collection[bytes] | None:
        """See `Delivery`; None where a batch is in Kafka whole or not at all."""
        ...


class _Delivered:
    """The part of a guarantee that its delivery does alone. A commit leaves nothing to be settled."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        return self._delivery.begin(leader_id, may_send)

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        return self._delivery.send(rows, may_send)

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:  # noqa: ARG002 - see above
        return BatchCommitted()

    def abandon(self) -> bool:
        return self._delivery.abandon()

    @property
    def failed_keys(self) -> Collection[bytes] | None:
        return self._delivery.failed_keys


class AtLeastOnceBatches(_Delivered):
    """`Guarantee` that repeats records after a failure: the loop saves the checkpoint after the batch."""

    exactly_once = False

    def __init__(self, delivery: Delivery, store: CheckpointStore) -> None:
        super().__init__(delivery)
        self.store = store

    def commit(self, _checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        return self._delivery.commit(b"", may_send)


class TransactionalBatches(_Delivered):
    """`Guarantee` by Kafka transactions: the checkpoint is a record of the batch's own transaction."""

    exactly_once = True

    def __init__(self, delivery: Delivery, store: KafkaStore) -> None:
        super().__init__(delivery)
        self.store: CheckpointStore = store
        self._encode, self._vouch = store.encode, store.vouch

    def commit(self, checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        if not self._vouch():
            return BatchFailed(reason=_REFUSED)
        return self._delivery.commit(self._encode(checkpoint), may_send)


class SequencedBatches(_Delivered):
    """`Guarantee` by acknowledgements: readers see a batch once its checkpoint is kept and they have arrived."""

    exactly_once = True
    _delivery: Sequenced

    def __init__(self, delivery: Sequenced, store: IntentStore) -> None:
        super().__init__(delivery)
        self.store = store
        self._acknowledged: Checkpoint | None = None  # kept with acknowledgements, which are on their way
        self._clear_at = 0.0

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        self._acknowledged = None
        return super().begin(leader_id, may_send)

    def commit(self, checkpoint: Checkpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        outcome = self._delivery.flush(may_send)
        if not isinstance(outcome, BatchCommitted):
            return outcome
        if not may_send():
            return TERM_OVER
        intents = self._delivery.take_intents()
        if not self.store.save_pending(checkpoint, intents):
            return BatchFailed(reason=_REFUSED)
        self._acknowledged = checkpoint if intents else None
        return self._delivery.acknowledge(intents)

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        outcome = self._delivery.flush(may_send)
        checkpoint = self._acknowledged
        if isinstance(outcome, BatchCommitted) and checkpoint is not None and boot_seconds() >= self._clear_at:
            # Else they stay in the checkpoint, and a later leader would write them to a topic that may be gone by then.
            self._acknowledged = None
            self._clear_at = boot_seconds() + _CLEAR_SECONDS
            return outcome if self.store.save_pending(checkpoint, ()) else BatchFailed(reason=_REFUSED)
        if isinstance(outcome, BatchCommitted) and checkpoint is None and not self.store.ask_again():
            return BatchFailed(reason=_REFUSED)
        return outcome
