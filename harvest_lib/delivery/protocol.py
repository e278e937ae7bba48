"""What a delivery to Kafka promises to the loop that drives it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from harvest_lib.record import Row
from harvest_lib.record.rows import RowQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A record that was not acknowledged. It may be in Kafka all the same: treat it as unknown, send it again.

    Unless it was `refused`: then it is not there, and Kafka would never take it.
    """

    row: Row
    reason: str
    refused: bool = False


@dataclass(slots=True)
class Reports:
    """What became of records since the last poll: the ids of those that were acknowledged, and the failures. `halted`:
    nothing more is sent before the delivery begins again."""

    acknowledged: list[int] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    halted: bool = False


class Delivery(Protocol):
    """A way into Kafka. Used by one thread; every record handed to `send` comes back exactly once in a report."""

    def begin(self, leader_id: UUID) -> None:
        """Send under this leader id from now on."""
        ...

    @property
    def takes(self) -> bool:
        """Tell whether `send` might take anything now."""
        ...

    def send(self, rows: RowQueue, may_send: Callable[[], bool]) -> None:
        """Take rows from the left of `rows` and hand them to Kafka, in order per key, together with what earlier calls
        could not hand over. Rows stay when `may_send` says no, when there is no room for them, or once halted."""
        ...

    def poll(self, timeout_seconds: float) -> Reports:
        """Return what has acked, waiting up to `timeout_seconds` for the first report."""
        ...

    def abandon(self) -> Reports:
        """Let nothing more leave, and return a report for every record that had none: acknowledged, or failed."""
        ...

    def close(self) -> None:
        """Let go of the producer; what is still queued is not sent. Safe to repeat."""
        ...
