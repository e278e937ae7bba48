"""Rows on their way, in order, one by one or by the page. Pure, no I/O.

A *page* has rows that are not made yet: Postgres has sent them, and they may go to Kafka as they are
(`harvest_lib.native`). Reading a single one makes it.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import overload

from harvest_lib.record.row import Row
from harvest_lib.telemetry.trace_context import TRACEPARENT, is_sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSummary:
    """Properties of rows that are needed before they are sent. `bytes` is the size of all, `largest` of the largest:
    key, value and headers. `is_plain`: each has a topic, a key, and headers that are well-formed, none with a name of
    the harvester's own; `topics` are all of theirs, if so."""

    bytes: int
    largest: int
    is_plain: bool
    topics: Collection[str]


class RowPage(Sequence[Row]):
    """Rows that are made each time they are read. A slice is a page too."""

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
        """Return the ids of all, without making rows."""

    @property
    @abstractmethod
    def keys(self) -> list[str]:
        """Return the keys of all, each of which has one (`RowsSummary.is_plain`), without making rows."""

    @abstractmethod
    def pick(self, places: Sequence[int]) -> "RowPage":
        """Return the rows at these places, as a page."""

    @property
    @abstractmethod
    def summary(self) -> RowsSummary:
        """Return the summary of all rows."""

    @abstractmethod
    def sampled_traceparents(self, most: int) -> list[str]:
        """Return the same as the function of this name, without making rows."""


def ids_of(rows: Sequence[Row]) -> list[int]:
    """Return the ids of rows."""
    return rows.ids if isinstance(rows, RowPage) else [row[0] for row in rows]


def keys_of(rows: Sequence[Row]) -> list[str]:
    """Return the keys of rows that each have one."""
    return rows.keys if isinstance(rows, RowPage) else [row[2] for row in rows]


def sampled_traceparents(rows: Sequence[Row], most: int) -> list[str]:
    """Return the header `traceparent` of the first rows that have one of a recorded span, `most` of them at most. A
    repetition of the one before is left out. The caller has to check that it is well-formed."""
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
