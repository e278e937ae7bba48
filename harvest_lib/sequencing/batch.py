"""Messages of a partition, many at a time.

A batch is stored in columns. A `Message` is made only when it is asked for: to make one of each message that waits for
its acknowledgement would cost as much as all else that is done with it. Pure.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, overload

from harvest_lib.record.last_read import LastRead


class Message(NamedTuple):
    """A message of a partition. The sequencer uses only its offset and its id."""

    offset: int
    id: bytes | None
    record: Any


def bytes_of(records: Sequence[Any]) -> int:
    """Return the bytes of the values of records; 0 for each that has no length."""
    try:
        return sum(map(len, records))
    except TypeError:
        return sum(len(each) if hasattr(each, "__len__") else 0 for each in records)


class Batch(Sequence[Message]):
    """Messages by rising offset. `records` are the client's alone, for callers that need neither offsets nor ids."""

    __slots__ = ("ids", "last", "offsets", "records")

    def __init__(
        self,
        offsets: list[int] | range,
        ids: list[bytes | None],
        records: list[Any],
        last: LastRead | None = None,
    ) -> None:
        """Columns of the same length; they become the batch's own. `last` identifies its last record, if known."""
        self.offsets, self.ids, self.records, self.last = offsets, ids, records, last

    @classmethod
    def of(cls, messages: Iterable[Message]) -> "Batch":
        """Return messages as a batch."""
        held = GrowingBatch([], [], [])
        for message in messages:
            held.append(message)
        return held

    def last_below(self, offset: int) -> LastRead | None:
        """Return the identity of the last record below an offset: without its content if it is not the last of the
        batch, because the caller may have changed that. None without a record, or if it is unknown."""
        number = bisect_left(self.offsets, offset)
        if number == len(self.ids):
            return self.last
        return LastRead.at(self.records[number - 1]) if number else None

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, which: int) -> Message: ...
    @overload
    def __getitem__(self, which: slice) -> "Batch": ...
    def __getitem__(self, which: int | slice) -> "Message | Batch":
        if isinstance(which, slice):
            return Batch(self.offsets[which], self.ids[which], self.records[which])
        return Message(self.offsets[which], self.ids[which], self.records[which])

    def __iter__(self) -> Iterator[Message]:
        # As `Message._make`, at a third of its cost.
        return map(tuple.__new__, repeat(Message), zip(self.offsets, self.ids, self.records, strict=True))


class GrowingBatch(Batch):
    """One that grows: made with lists of its own."""

    __slots__ = ()
    offsets: list[int]

    def append(self, message: Message) -> None:
        offset, message_id, record = message
        self.offsets.append(offset)
        self.ids.append(message_id)
        self.records.append(record)

    def extend(self, other: Batch) -> None:
        self.offsets += other.offsets
        self.ids += other.ids
        self.records += other.records
