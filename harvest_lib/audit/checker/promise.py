"""What a delivery promises, and so which anomalies it allows."""

from dataclasses import dataclass
from typing import Literal

Delivery = Literal["at_least_once", "transactional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A delivery, and whether at most one record of a key is in flight (at least once only)."""

    delivery: Delivery
    barrier: bool = True

    @property
    def transactional(self) -> bool:
        """Whether only what committed readers see counts."""
        return self.delivery == "transactional"
