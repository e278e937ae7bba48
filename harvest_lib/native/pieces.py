"""Sequences of bytes in a single block of memory. Python makes an object for a piece only when that piece is read."""

from collections.abc import Iterator, Sequence
from ctypes import Array, c_int32, c_int64
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, overload

from harvest_lib.native.library import NativeTarget


class Pieces(Sequence[bytes]):
    """Pieces that follow each other in `memory`. Piece *i* lies between the bounds *i* and *i* + 1; bound 0 is 0."""

    __slots__ = ("_count", "bounds", "memory")

    def __init__(self, memory: "bytes | Array[Any]", bounds: "Array[c_int64]", count: int) -> None:
        """`bounds` has at least `count` + 1 elements."""
        self.memory = memory
        self.bounds = bounds
        self._count = count

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> "Pieces":
        """Return the pieces, copied into a single block of memory."""
        bounds = (c_int64 * (len(pieces) + 1))(*accumulate(map(len, pieces), initial=0))
        return cls(b"".join(pieces), bounds, len(pieces))

    @property
    def size(self) -> int:
        """Return the size of all pieces in bytes."""
        return int(self.bounds[self._count])

    @property
    def view(self) -> memoryview:
        """Return the bytes of all pieces, without a copy."""
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
    """Records for a producer. Each record has a key and a value. `kinds` has, for each record, an index in `targets`,
    which lists topics and timestamps."""

    keys: Pieces
    values: Pieces
    kinds: "Array[c_int32]"
    targets: "Array[NativeTarget]"

    def __len__(self) -> int:
        return len(self.values)


def targets_of(places: Sequence[tuple[str, int]]) -> "Array[NativeTarget]":
    """Return the targets for `NativeRecords`, from pairs of a topic and a timestamp in milliseconds."""
    return (NativeTarget * len(places))(*(NativeTarget(topic.encode(), timestamp) for topic, timestamp in places))


def kinds_of(numbers: Sequence[int]) -> "Array[c_int32]":
    """Return the kinds for `NativeRecords`, from the index of each record's target."""
    return (c_int32 * len(numbers))(*numbers)
