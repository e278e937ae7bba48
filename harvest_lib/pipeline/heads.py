"""Heads of messages: the parts of an entry of the log beside offset and data. Many messages share one."""

from collections.abc import Collection, Iterator, Sequence
from typing import overload

Head = tuple[int, int, bytes]
"""Timestamp, mode byte, key (the namespace)."""


class SharedHeads(Sequence[Head]):
    """The heads of messages by their numbers in a table, a byte for each message."""

    __slots__ = ("numbers", "table")

    def __init__(self, table: Sequence[Head], numbers: bytes) -> None:
        self.table = table
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Head: ...
    @overload
    def __getitem__(self, place: slice) -> "SharedHeads": ...
    def __getitem__(self, place: int | slice) -> "Head | SharedHeads":
        if isinstance(place, slice):
            return SharedHeads(self.table, self.numbers[place])
        return self.table[self.numbers[place]]

    def __iter__(self) -> Iterator[Head]:
        return map(self.table.__getitem__, self.numbers)

    def count_of(self, kept: Collection[Head]) -> int:
        """Return the number of messages that have one of these heads."""
        return sum(self.numbers.count(number) for number, head in enumerate(self.table) if head in kept)


def distinct(heads: Sequence[Head]) -> Collection[Head]:
    """Return each head once."""
    if not isinstance(heads, SharedHeads):
        return set(heads)
    return {head for number, head in enumerate(heads.table) if number in heads.numbers}


def newest(heads: Sequence[Head], first: int = 0) -> dict[bytes, int]:
    """Return the last offset of each key, the first head being at `first`."""
    if not isinstance(heads, SharedHeads):
        return {key: offset for offset, (_, _, key) in enumerate(heads, first)}
    found: dict[bytes, int] = {}
    for number, (_, _, key) in enumerate(heads.table):
        place = heads.numbers.rfind(number)
        if place >= 0:
            found[key] = max(first + place, found.get(key, first))
    return found
