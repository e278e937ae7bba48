"""Rows on their way, in order, as a list or as a page. Pure, no I/O.

A *page* holds rows as Postgres has sent them, which may go to Kafka unchanged (`harvest_lib.native`). Reading a row of
a page makes a Python row.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import overload

from harvest_lib.record.row import Row
from harvest_lib.telemetry.trace_context import TRACEPARENT, is_sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSummary:
    """Properties of rows that are needed before they are sent. `bytes` is the size of all rows, `largest` of the
    largest: key, value and headers. `is_plain`: each row has a topic, a key, and headers that are well-formed, none
    with a name of the harvester's own; `topics` are then all their topics."""

    bytes: int
    largest: int
    is_plain: bool
    topics: Collection[str]


class RowPage(Sequence[Row]):
    """Rows that are made on each read. A slice is a page too."""

    __slots__ = ()

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> "RowPage": ...
    @abstractmethod
    def __getitem__(self, place: int | slice) -> "Row | RowPage": ...

    @property
    @abstractmethod
    def ids(self) -> list[int]:
        """Return the ids of all rows, without making rows."""

    @property
    @abstractmethod
    def keys(self) -> list[str]:
        """Return the keys of all rows, if each has a key (`RowsSummary.is_plain`), without making rows."""

    @abstractmethod
    def pick(self, places: Sequence[int]) -> "RowPage":
        """Return the rows at `places`, as a page."""

    @property
    @abstractmethod
    def summary(self) -> RowsSummary:
        """Return the summary of all rows."""

    @abstractmethod
    def sampled_traceparents(self, most: int) -> list[str]:
        """Return the same as the function `sampled_traceparents`, without making rows."""


def ids_of(rows: Sequence[Row]) -> list[int]:
    """Return the ids of rows."""
    return rows.ids if isinstance(rows, RowPage) else [row[0] for row in rows]


def keys_of(rows: Sequence[Row]) -> list[str]:
    """Return the keys of rows that each have a key."""
    return rows.keys if isinstance(rows, RowPage) else [row[2] for row in rows]


def sampled_traceparents(rows: Sequence[Row], most: int) -> list[str]:
    """Return the header `traceparent` of the first rows with a recorded span, at most `most`, without repetitions in a
    row. The caller has to check that it is well-formed."""
    if isinstance(rows, RowPage):
        return rows.sampled_traceparents(most)
    found: list[str] = []
    for row in [each for each in rows if each[4] and TRACEPARENT in each[4]]:  # most often there is none
        value = next((value for name, value in zip(row[4], row[5], strict=False) if name == TRACEPARENT), None)
        if isinstance(value, str) and is_sampled(value) and found[-1:] != [value]:
            found.append(value)
            if len(found) == most:
                break
    return found
