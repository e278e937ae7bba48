"""Batches of messages of a partition.

A batch is stored in columns. A `Message` object is made only when a message is read. An object for each pending message
would cost as much as all other work on that message. Pure, no I/O.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, overload

from harvest_lib.record.last_read import LastRead


class Message(NamedTuple):
    """A message of a partition. The sequencer uses only the offset and the id of the message."""

    offset: int
    id: bytes | None
    record: Any


def bytes_of(records: Sequence[Any]) -> int:
    """Return the total size of the records' values in bytes. A record without a length counts as 0."""
    try:
        return sum(map(len, records))
    except TypeError:
        return sum(len(each) if hasattr(each, "__len__") else 0 for each in records)


class Batch(Sequence[Message]):
    """Messages in order of their offsets, stored as three columns: `offsets`, `ids` and `records`. `records` has the
    Kafka client's records, for callers that need neither offsets nor ids."""

    __slots__ = ("ids", "last", "offsets", "records")

    def __init__(
        self,
        offsets: list[int] | range,
        ids: list[bytes | None],
        records: list[Any],
        last: LastRead | None = None,
    ) -> None:
        """The columns have the same length. The batch takes the lists over without a copy. `last` identifies the
        batch's last record, if known."""
        self.offsets, self.ids, self.records, self.last = offsets, ids, records, last

    @classmethod
    def of(cls, messages: Iterable[Message]) -> "Batch":
        """Return a batch of single messages."""
        held = GrowingBatch([], [], [])
        for message in messages:
            held.append(message)
        return held

    def last_below(self, offset: int) -> LastRead | None:
        """Return the identity of the last record below an offset; None if there is no such record, or if its identity
        is unknown. The identity includes the content only for the batch's last record, because the caller may have
        changed the content of other records."""
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
        # The same as `Message._make`, at a third of the cost.
        return map(tuple.__new__, repeat(Message), zip(self.offsets, self.ids, self.records, strict=True))


class GrowingBatch(Batch):
    """A batch to which messages are appended. It changes the lists that are passed to it, so pass new lists."""

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
