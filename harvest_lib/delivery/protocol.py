"""Protocol between the loop of a term and its delivery, which sends batches to Kafka. The outcomes of a batch.

    begin ──► send, send, … ──► commit ──┬─ BatchCommitted
                                         ├─ BatchFailed: begin again, at the last committed position
                                         └─ BatchFenced: another leader has taken over, the term is over

| class | records | checkpoint |
| --- | --- | --- |
| `AtLeastOnce` | pipelined | saved in Postgres, five times a second; without positions, the rows are purged |
| `Transactional` | in a Kafka transaction | a record of the transaction; a mirror in Postgres |
| `Sequenced` | pending until acknowledged | saved in Postgres with the acknowledgements, which are sent afterwards |

Batches are fast because a delivery stores nothing per record between `send` and `commit`.
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
    """The batch was not committed: some, none or all of its records may be in Kafka. `refused`: the batch has a record
    that Kafka will never take. `unnamed`: Kafka did not name the topic of the failure."""

    reason: str
    refused: bool = False
    unnamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFenced:
    """Kafka takes nothing from this leader any more, because another leader has begun."""

    reason: str


BatchOutcome = BatchCommitted | BatchFailed | BatchFenced

TERM_OVER = BatchFailed(reason="the term is over")
CHECKPOINT_REFUSED = BatchFailed(reason="the checkpoint was refused: another leads, or the subscription was moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeliverySettings:
    """Settings of a delivery. `kafka` are the user's producer settings, with secrets in clear text. `expiry_seconds`:
    how long a record may be in the producer's queue, for batches with at most one record of a key; None where an
    expired record would leave a gap. `is_limited`: the number of records in flight is limited, so the delivery's own
    records are not sent while rows are in flight."""

    kafka: Mapping[str, object] = field(repr=False)
    delivery_timeout_seconds: float
    expiry_seconds: float | None = None
    record_header: bool = True
    is_limited: bool = False
    producer_provider: KafkaProducerProvider = Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """State of an abandoned batch. `may_arrive`: records on the wire may still arrive, visible to readers.
    `failed_keys`: the keys of the records that are not in Kafka, if no record may arrive any more; None if these keys
    are unknown, or if readers see all or nothing of a batch."""

    may_arrive: bool = False
    failed_keys: Collection[bytes] | None = None


class Delivery(Protocol):
    """Delivery of batches to Kafka, each with the checkpoint after the batch. One thread uses it, over any number of
    terms."""

    def begin(self, leader_id: UUID, may_send: Callable[[], bool]) -> BatchOutcome:
        """Prepare to send under this leader id. Discard an open batch. If `may_send` returns False, this call stops
        before it fences another producer."""
        ...

    def send(self, rows: Sequence[Row], may_send: Callable[[], bool]) -> dict[int, str]:
        """Hand rows over, in order, up to the first row that the client itself refuses. Return that row's id with the
        reason; an empty dictionary if no row is refused. If `may_send` returns False, this call stops, and the next
        `commit` fails."""
        ...

    def commit(self, checkpoint: OutboxCheckpoint, may_send: Callable[[], bool], /) -> BatchOutcome:
        """End the batch: wait until Kafka has all of its records. A delivery exactly once makes the checkpoint durable
        with the batch; with delivery at least once, the loop saves the checkpoint afterwards."""
        ...

    def settle(self, may_send: Callable[[], bool]) -> BatchOutcome:
        """Wait until readers can see all committed records. The loop calls it while no record waits to be sent."""
        ...

    def abandon(self) -> Abandoned:
        """Abandon the open batch: no further record leaves. Repeated calls are safe."""
        ...
