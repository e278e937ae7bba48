"""Data types for parked records: selections, counts, and results of retry and drop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HeldKey = tuple[str, str]
"""A topic and a key in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """A parked record without its payload. `held`: it only waits behind a parked record."""

    id: int
    topic: str
    key: str
    reason: str
    held: bool
    parked_at: datetime
    age_seconds: float
    gone: bool = False
    """The row is no longer in the outbox: it was deleted, and another row may have its id. No record waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRow(ParkedRecord):
    """A parked record with the whole row of the outbox, by column, as JSON: payload included."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSelection:
    """A selection of records that meet every given criterion; without criteria, of all. All `ids` must be parked."""

    ids: Sequence[int] | None = None
    topic: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCounts:
    """Numbers of parked records and of records held behind them."""

    parked: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of a retry. `behind`: up to five ids of parked records that `waiting` records wait for."""

    parked: int
    """Parked records put back into the outbox."""
    held: int
    """Held records put back with them."""
    waiting: int
    """Selected records that are held: an earlier record of their key is still parked."""
    behind: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The result of a drop."""

    dropped: int
    """Records deleted permanently."""
    released: int
    """Held records put back into the outbox: no parked record is before them any longer."""
