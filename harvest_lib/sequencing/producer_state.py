"""The state of a producer of messages in a sequencer, and its JSON form in checkpoints and offsets. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NOTHING_PENDING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """State of a producer. `acknowledged`: the clock of its last committed message or acknowledgement. `begin`: the
    offset of its first pending message, -1 without pending messages. `newest`: the clock of its newest message."""

    producer: int
    acknowledged: int
    begin: int = NOTHING_PENDING
    newest: int = 0
    ack: int = 0
    """The clock of the last acknowledgement."""

    def to_json(self) -> list[str | int]:
        """Return the state as values for JSON. Clocks are strings because some readers of JSON cannot hold 64 bits."""
        return [f"{self.producer:x}", str(self.acknowledged), self.begin, str(self.newest), str(self.ack)]

    @classmethod
    def of_json(cls, value: Sequence[Any]) -> "ProducerState":
        """Return the state from a value that `to_json` returned. Raises TypeError or ValueError for another value."""
        producer, acknowledged, begin, newest, ack = value
        return cls(
            producer=int(producer, 16), acknowledged=int(acknowledged), begin=begin, newest=int(newest), ack=int(ack)
        )
