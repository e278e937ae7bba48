"""Bytes that lie behind each other in memory: Python makes an object of a piece only when that is read."""

from collections.abc import Iterator, Sequence
from ctypes import Array, c_int32, c_int64
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, overload

from harvest_lib.native.library import NativeTarget


class Pieces(Sequence[bytes]):
    """Each piece lies between two bounds, the first begins at 0."""

    __slots__ = ("_count", "bounds", "memory")

    def __init__(self, memory: "bytes | Array[Any]", bounds: "Array[c_int64]", count: int) -> None:
        """`bounds` are more than there are pieces, by one at least."""
        self.memory = memory
        self.bounds = bounds
        self._count = count

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> "Pieces":
        """Lay bytes behind each other."""
        bounds = (c_int64 * (len(pieces) + 1))(*accumulate(map(len, pieces), initial=0))
        return cls(b"".join(pieces), bounds, len(pieces))

    @property
    def size(self) -> int:
        """Return the size of all in bytes."""
        return int(self.bounds[self._count])

    @property
    def view(self) -> memoryview:
        """Return the bytes of all, without a copy."""
        return memoryview(self.memory).cast("B")[: self.size]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        view = self.view
        if isinstance(place, int):
            at = range(self._count)[place]
            return bytes(view[self.bounds[at] : self.bounds[at + 1]])
        begin, end, step = place.indices(self._count)
        if step != 1:
            raise ValueError("pieces have no steps")
        return [bytes(view[one:other]) for one, other in pairwise(self.bounds[begin : max(begin, end) + 1])]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self[:])


@dataclass(frozen=True, slots=True)
class NativeRecords:
    """Records for a producer: of each its key, its value, and the number of its target."""

    keys: Pieces
    values: Pieces
    kinds: "Array[c_int32]"
    targets: "Array[NativeTarget]"

    def __len__(self) -> int:
        return len(self.values)


def targets_of(places: Sequence[tuple[str, int]]) -> "Array[NativeTarget]":
    """Return topics, each with a time in milliseconds, for `NativeRecords`."""
    return (NativeTarget * len(places))(*(NativeTarget(topic.encode(), timestamp) for topic, timestamp in places))


def kinds_of(numbers: Sequence[int]) -> "Array[c_int32]":
    """Return the number of each record's target, for `NativeRecords`."""
    return (c_int32 * len(numbers))(*numbers)
