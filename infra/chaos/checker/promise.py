"""The promise of a delivery. It determines the anomalies that are allowed."""

from dataclasses import dataclass
from typing import Literal

Delivery = Literal["at_least_once", "transactional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise. If `barrier` is true, at most one record of a key is in flight; used only for `at_least_once`."""

    delivery: Delivery
    barrier: bool = True

    @property
    def transactional(self) -> bool:
        """True if a record counts only if a committed reader sees it."""
        return self.delivery == "transactional"
