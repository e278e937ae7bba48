"""Data types for parked records: selections, counts, and results of retry and drop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HeldKey = tuple[str, str]
"""A topic and a key in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """One parked record, without its payload. `held` tells that it only waits behind a parked one."""

    id: int
    topic: str
    key: str
    reason: str
    held: bool
    parked_at: datetime
    age_seconds: float
    gone: bool = False
    """The row is no longer in the outbox: it was deleted, and another one may have its id. Nothing waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRow(ParkedRecord):
    """The same with the whole row of the outbox, by column, as JSON has it: payload included."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSelection:
    """A selection of records: those that meet every criterion given; all if none is. All ids must be there."""

    ids: Sequence[int] | None = None
    topic: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCounts:
    """Records that are parked, and records held behind them."""

    parked: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of a retry. `behind` are some of the parked ids that the waiting ones stand behind."""

    parked: int
    """Parked records put back into the outbox."""
    held: int
    """Held records put back with them."""
    waiting: int
    """Selected, and held where they are: an earlier record of their key is still parked."""
    behind: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The result of a drop."""

    dropped: int
    """Records deleted permanently."""
    released: int
    """Held records put back into the outbox, since nothing parked is before them any longer."""
