"""Data types for parked records: selections, counts, and results of retry and drop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HeldKey = tuple[str, str]
"""A topic, and a key of records in that topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """A parked or held record without its payload. `held`: the record only waits behind a parked record of its key."""

    id: int
    topic: str
    key: str
    reason: str
    held: bool
    parked_at: datetime
    age_seconds: float
    gone: bool = False
    """True if the record's row is no longer in the outbox; another row may have the same id. No record waits behind a
    record without a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRow(ParkedRecord):
    """A parked record with its outbox row, payload included. `row` maps each column to its value as JSON."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSelection:
    """Criteria that select parked records: a record must meet every given criterion. Without criteria, all records are
    selected. All `ids` must be parked."""

    ids: Sequence[int] | None = None
    topics: Sequence[str] | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCounts:
    """The number of parked records, and the number of records held behind them."""

    parked: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSummary:
    """A bounded summary of the parked records. `ids`, `topics` and `reasons` have the first few values. `is_estimate`:
    there are more records than were counted. `oldest_age_seconds` is 0 if nothing is parked."""

    parked: int = 0
    held: int = 0
    ids: Sequence[int] = ()
    topics: Sequence[str] = ()
    reasons: Sequence[str] = ()
    oldest_age_seconds: float = 0.0
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of a retry, as numbers of records. `behind`: up to five ids of the parked records that the `waiting`
    records wait for."""

    parked: int
    """Number of parked records put back into the outbox."""
    held: int
    """Number of held records put back with the parked records."""
    waiting: int
    """Number of selected records that are held, since an earlier record of their key is still parked."""
    behind: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The result of a drop, as numbers of records."""

    dropped: int
    """Number of records deleted permanently."""
    released: int
    """Number of held records put back into the outbox, since no parked record is before them any longer."""
