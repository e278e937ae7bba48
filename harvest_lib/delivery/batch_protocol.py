"""Delivery in batches: what the batch loop asks of a delivery, and what it is told.

    begin ──► send, send, … ──► commit ──┬─ BatchCommitted
                                         ├─ BatchFailed: begin again, at the last position that was committed
                                         └─ BatchFenced: another leader has taken over, this one is over

Nothing is kept per record between `send` and `commit`, which is what makes batches fast. What a commit leaves to be
done is done by the next one, or by `settle` where there is no next one yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from confluent_kafka import Producer

from harvest_lib.kafka_client import KafkaProducerProvider
from harvest_lib.record import Row
from harvest_lib.sequencing.publisher import Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted:
    """Every record of the batch is in Kafka, on every in-sync replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """Some of the batch may be in Kafka, or none of it. `refused`: a record in it will never be taken. `unnamed`:
    nobody said for which of its topics."""

    reason: str
    refused: bool = False
    unnamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFenced:
    """Kafka takes nothing from this leader any more: another one has begun."""

    reason: str


BatchOutcome = BatchCommitted | BatchFailed | BatchFenced


Keep = Callable[[Sequence[Intent]], bool]
"""Puts a checkpoint where it is kept, and the acknowledgements that follow from it with it; False if it was refused."""


Offer = bytes | Keep | None
"""How a checkpoint goes with its batch: as a record beside the batch's own, by a call before they count, or not at
all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeliverySettings:
    """`kafka` are the user's producer settings, secrets in clear."""

    kafka: Mapping[str, object] = field(repr=False)
    delivery_timeout_seconds: float
    record_header: bool = True
    producer_provider: KafkaProducerProvider = Producer


class BatchDelivery(Protocol):
    """A way into Kafka in batches. Used by one thread."""

    def begin(self, leader_id: UUID) -> BatchOutcome:
        """Get ready to send under this leader id; what was open before is gone."""
        ...

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over, in order, up to the first that the client itself refuses; return that, id and reason. Stops
        when `may_send` says no; then `commit` fails."""
        ...

    def commit(self, checkpoint: Offer, may_send: Callable[[], bool], /) -> BatchOutcome:
        """End the batch: wait until all of it is in Kafka, and the checkpoint with it, if it goes along."""
        ...

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        """Wait until readers see all that was committed. Called between batches, while nothing is waiting to be
        sent."""
        ...

    def abandon(self) -> bool:
        """Let nothing more leave, and tell whether what is on the wire may still arrive, to be seen by readers. Safe to
        repeat."""
        ...
