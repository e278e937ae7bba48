"""Protocol between a delivery to Kafka, batch by batch, and the loop that drives it; the outcomes of a batch.

    begin ──► send, send, … ──► commit ──┬─ BatchCommitted
                                         ├─ BatchFailed: begin again, at the last position that was committed
                                         └─ BatchFenced: another leader has taken over, this one is over

Nothing is kept per record between `send` and `commit`: that makes batches fast.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from confluent_kafka import Producer

from harvest_lib.kafka_client import KafkaProducerProvider
from harvest_lib.record import Row


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

TERM_OVER = BatchFailed(reason="the term is over")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeliverySettings:
    """`kafka` are the user's producer settings, secrets in clear. `expiry_seconds`: how long a record may be in the
    producer's queue, for batches with at most one record of a key; None where one that expires would leave a gap.
    `is_limited`: the records in flight are limited, so a delivery's own ones are not on the way at the same time."""

    kafka: Mapping[str, object] = field(repr=False)
    delivery_timeout_seconds: float
    expiry_seconds: float | None = None
    record_header: bool = True
    is_limited: bool = False
    producer_provider: KafkaProducerProvider = Producer


class Delivery(Protocol):
    """A way into Kafka in batches, each with its checkpoint. Used by one thread, over any number of terms."""

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        """Get ready to send under this leader id; a batch that was open before is gone. Fences nobody more once
        `may_send` says no."""
        ...

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over, in order, up to the first that the client itself refuses; return that, id and reason. Stops
        when `may_send` says no; then `commit` fails."""
        ...

    def commit(self, checkpoint: bytes, may_send: Callable[[], bool], /) -> BatchOutcome:
        """End the batch: wait until all of it is in Kafka. Only a delivery in transactions takes the checkpoint
        along."""
        ...

    def abandon(self) -> bool:
        """Let nothing more leave; return True if records on the wire may still arrive, visible to readers. Safe to
        repeat."""
        ...

    @property
    def failed_keys(self) -> Collection[bytes] | None:
        """Return the keys of the records of the batch that are not in Kafka, once it was abandoned and none may still
        arrive; None if they are not known, or none is."""
        ...
