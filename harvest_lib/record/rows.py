"""Sequences of rows inside the harvester: a list, or a page. No I/O.

A *page* contains rows in the binary form in which Postgres sent them, and can pass them to Kafka without Python objects
(`harvest_lib.native`). Reading a row of a page creates a Python row.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from harvest_lib.record.row import Row
from harvest_lib.telemetry.trace_context import TRACEPARENT, is_sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSummary:
    """Properties of rows that are needed before the rows are sent. `bytes` is the size of all rows, and `largest` the
    size of the largest row: key, value and headers. `is_plain`: each row has a topic, a key and well-formed headers,
    and no header has a name that the harvester uses. If `is_plain`, `topics` are the topics of all rows."""

    bytes: int
    largest: int
    is_plain: bool
    topics: Collection[str]


class RowPage(Sequence[Row]):
    """A sequence that creates a row on each access. A slice of a page is a page."""

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
        """Return the ids of all rows, without creating rows."""

    @property
    @abstractmethod
    def keys(self) -> list[str]:
        """Return the keys of all rows, without creating rows. Each row must have a key (`RowsSummary.is_plain`)."""

    @property
    @abstractmethod
    def topics(self) -> list[str]:
        """Return the topics of all rows, without creating rows. Each row must have a topic (`RowsSummary.is_plain`)."""

    @abstractmethod
    def pick(self, places: Sequence[int]) -> "RowPage":
        """Return the rows at the indices `places`, as a page."""

    @property
    @abstractmethod
    def summary(self) -> RowsSummary:
        """Return the summary of all rows."""

    @abstractmethod
    def sampled_traceparents(self, most: int) -> list[str]:
        """Return the result of the function `sampled_traceparents` for this page, without creating rows."""


def ids_of(rows: Sequence[Row]) -> list[int]:
    """Return the ids of rows."""
    return rows.ids if isinstance(rows, RowPage) else [row[0] for row in rows]


def keys_of(rows: Sequence[Row]) -> list[str]:
    """Return the keys of rows. Each row must have a key."""
    return rows.keys if isinstance(rows, RowPage) else [row[2] for row in rows]


def topics_of(rows: Sequence[Row]) -> list[str]:
    """Return the topics of rows."""
    return rows.topics if isinstance(rows, RowPage) and rows.summary.is_plain else [row[1] for row in rows]


def records_by_topic(rows: Sequence[Row]) -> Mapping[str, int]:
    """Return the number of rows of each topic. For a page with a single topic, no work is done for each row."""
    if isinstance(rows, RowPage) and rows.summary.is_plain and len(rows.summary.topics) == 1:
        return dict.fromkeys(rows.summary.topics, len(rows))
    return Counter(topics_of(rows))


def sampled_traceparents(rows: Sequence[Row], most: int) -> list[str]:
    """Return the first `most` values of the header `traceparent` that name a sampled span. Of equal consecutive values
    only the first is returned. The caller has to check that a value is well-formed."""
    if isinstance(rows, RowPage):
        return rows.sampled_traceparents(most)
    found: list[str] = []
    for row in [each for each in rows if each[4] and TRACEPARENT in each[4]]:  # usually no row has the header
        value = next((value for name, value in zip(row[4], row[5], strict=False) if name == TRACEPARENT), None)
        if isinstance(value, str) and is_sampled(value) and found[-1:] != [value]:
            found.append(value)
            if len(found) == most:
                break
    return found
