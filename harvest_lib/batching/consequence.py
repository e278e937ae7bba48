"""Consequences of a batch that was not committed: the term restarts at the last committed position, or it ends."""

import logging
from typing import NoReturn, assert_never

from harvest_lib.batching.batch import OpenBatch
from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.delivery import BatchCommitted, BatchFailed, BatchFenced, BatchOutcome
from harvest_lib.record import Row
from harvest_lib.record.checkpoint import Position

_log = logging.getLogger("harvest_lib.batching.loop")  # its documented name

SUPERSEDED = "another leader has raised the epoch, or the subscription was removed"


class Restart(Exception):
    """The term restarts at the last committed position, under a new leader id.

    `position` is the position after the failed batch, if Kafka may have some of its records. `reopens`: the source is
    closed first, because its connection or the checkpoint may be invalid. `pause_seconds`: the wait before the next
    batch; None for the back-off after errors.
    """

    def __init__(
        self, *, position: Position | None = None, reopens: bool = False, pause_seconds: float | None = None
    ) -> None:
        super().__init__()
        self.position, self.reopens, self.pause_seconds = position, reopens, pause_seconds


class Superseded(Exception):
    """The term is over, because another leader has begun. `by_kafka`: Kafka reported that another producer has begun
    under the transactional ids."""

    def __init__(self, reason: str = SUPERSEDED, *, by_kafka: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.by_kafka = reason, by_kafka


def raise_consequence(
    outcome: BatchOutcome, batch: OpenBatch, ports: BatchPorts, size: BatchSize, position: Position | None = None
) -> NoReturn:
    """Raise Restart or Superseded for a batch that was not committed. `position` is the position after the batch, if
    Kafka may have some of its records."""
    sent, last_sent = batch.in_flight, batch.last_sent
    match outcome:
        case BatchFailed(reason=reason, refused=True) if sent and last_sent is not None:
            _log.warning("batch_refused", extra={"records": sent, "reason": reason})
            size.refused(sent)
            if sent == 1:
                batch.in_flight = 0  # the record is not in Kafka
                park(last_sent, reason, ports)
            raise Restart(position=position, pause_seconds=0.0)
        case BatchFailed(reason=reason, unnamed=unnamed):
            _log.warning("batch_failed", extra={"records": sent, "reason": reason})
            if unnamed and sent == 1 and last_sent is not None:
                ports.parking.blame(last_sent, reason)
            elif unnamed and sent:
                size.refused(sent)
            elif sent:
                size.late(sent)
            raise Restart(position=position)
        case BatchFenced(reason=reason):
            raise Superseded(reason, by_kafka=True)
        case BatchCommitted():
            raise ValueError(outcome)
        case other:
            assert_never(other)


def park(row: Row, reason: str, ports: BatchPorts) -> NoReturn:
    """Park a refused record. Raises Restart, to continue without the record, or Superseded if the leader is fenced."""
    if not ports.parking.park(row, reason):
        raise Superseded
    raise Restart(pause_seconds=0.0)
