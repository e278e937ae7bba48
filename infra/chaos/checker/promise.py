"""The promise of a delivery, which decides the anomalies that it allows."""

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
        """True if only records that committed readers see count."""
        return self.delivery == "transactional"
