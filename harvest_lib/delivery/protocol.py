"""Protocol between a delivery to Kafka, batch by batch, and the loop that drives it; the outcomes of a batch.

    begin ──► send, send, … ──► commit ──┬─ BatchCommitted
                                         ├─ BatchFailed: begin again, at the last position that was committed
                                         └─ BatchFenced: another leader has taken over, the term is over

| class | records | their checkpoint |
| --- | --- | --- |
| `AtLeastOnce` | pipelined | saved after the batch, in Postgres, five times a second; or the purge of the rows |
| `Transactional` | in a Kafka transaction | a record of the transaction; a mirror in Postgres |
| `Sequenced` | pending until acknowledged | in Postgres with the acknowledgements, before they are sent |

Nothing is kept per record between `send` and `commit`: that makes batches fast.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from confluent_kafka import Producer

from harvest_lib.kafka_client import KafkaProducerProvider
from harvest_lib.record import Row
from harvest_lib.record.checkpoint import OutboxCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted:
    """Every record of the batch is in Kafka, on every in-sync replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """Some of the batch may be in Kafka, or none of it. `refused`: a record in it will never be taken. `unnamed`: Kafka
    did not name the topic."""

    reason: str
    refused: bool = False
    unnamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFenced:
    """Kafka takes nothing from this leader any more: another leader has begun."""

    reason: str


BatchOutcome = BatchCommitted | BatchFailed | BatchFenced

TERM_OVER = BatchFailed(reason="the term is over")
CHECKPOINT_REFUSED = BatchFailed(reason="the checkpoint was refused: another leads, or the subscription was moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeliverySettings:
    """`kafka` are the user's producer settings, secrets in clear. `expiry_seconds`: how long a record may be in the
    producer's queue, for batches with at most one record of a key; None where an expired record would leave a gap.
    `is_limited`: the records in flight are limited, so the delivery's own records are not in flight with them."""

    kafka: Mapping[str, object] = field(repr=False)
    delivery_timeout_seconds: float
    expiry_seconds: float | None = None
    record_header: bool = True
    is_limited: bool = False
    producer_provider: KafkaProducerProvider = Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Remains of an abandoned batch. `may_arrive`: records on the wire may still arrive, visible to
    readers. `failed_keys`: the keys of the records that are not in Kafka, once none may arrive; None if they are not
    known, or if the batch is in Kafka whole or not at all."""

    may_arrive: bool = False
    failed_keys: Collection[bytes] | None = None


class Delivery(Protocol):
    """Delivery of batches to Kafka, each with the checkpoint after it. Used by one thread, over any number of terms."""

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        """Prepare to send under this leader id; an open batch is gone. Fences no leader once `may_send` is False."""
        ...

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over, in order, up to the first row that the client itself refuses; return its id and the reason.
        Stops when `may_send` is False; `commit` fails then."""
        ...

    def commit(self, checkpoint: OutboxCheckpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        """End the batch: wait until Kafka has all of it. Exactly once, the checkpoint is durable with it; at least
        once, the loop saves the checkpoint afterwards."""
        ...

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        """Wait until readers see all committed records. Called between batches, while no record waits to be sent."""
        ...

    def abandon(self) -> Abandoned:
        """Let no further record leave. Safe to repeat."""
        ...
