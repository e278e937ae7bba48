"""Batches of encoded messages. Reader, commit log and writers exchange these batches, without an object for each
message.

A message is stored as two parts: its head, which many messages share, and its encoded data. A batch is nevertheless a
sequence of messages: each access to an element creates a `PipelineMessage`.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, overload

from harvest_lib.errors import HarvestError, PipelineError
from harvest_lib.native import EncodedRows
from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.bounds import size_decoded
from harvest_lib.pipeline.commit_log.entry import FIXED_BYTES, LogEntry, Packable, Packed, Packing, mode_byte, parts_of
from harvest_lib.pipeline.extended_json import Encoded
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.pipeline.stop_reason import one_line

Head = tuple[int, int, bytes]
"""Timestamp, mode byte and key (the namespace) of a message: a log entry without its offset and its data."""

BYTES = {(mode, op): mode_byte(mode, op) for mode in Mode for op in Op}
"""The mode byte of each mode and op."""
PARTS = {byte: (mode, op) for (mode, op), byte in BYTES.items()}
NOOPS = frozenset(BYTES[mode, Op.NOOP] for mode in Mode)


class EncodedMessages(Sequence[PipelineMessage], Packable):
    """A batch of encoded messages. A reader that encodes messages without message objects yields its own subclass."""

    __slots__ = ("_bounds", "_heads", "values")

    def __init__(self, heads: Sequence[Head], values: Sequence[bytes]) -> None:
        """`heads` and `values` have an element per message. A value is the data as `extended_json.dumps` encodes it."""
        self._heads = heads
        self.values = values
        self._bounds: Sequence[int] | None = None

    @property
    def heads(self) -> Sequence[Head]:
        """Return the head of each message."""
        return self.heads_of(0, len(self))

    def heads_of(self, begin: int, end: int) -> Sequence[Head]:
        """Return the heads of the messages from `begin` to before `end`."""
        return self._heads[begin:end]

    @abstractmethod
    def data(self, place: int) -> Mapping[str, Any]:
        """Return the data of the message at index `place`."""

    def column(self, name: str, begin: int, end: int) -> Sequence[Any]:
        """Return the value of a field in each message from `begin` to before `end`, None for a message without the
        field."""
        return [self.data(place).get(name) for place in range(begin, end)]

    def logged(self, place: int, offset: int) -> PipelineMessage:
        """Return the message at index `place` with its offset in the log. The message's data must not be modified."""
        ((timestamp, byte, key),) = self.heads_of(place, place + 1)
        mode, op = PARTS[byte]
        return PipelineMessage(op, timestamp, key.decode(), Encoded(self.data(place), self.values[place]), mode, offset)

    def kinds(self, begin: int, end: int) -> Collection[Head]:
        """Return the distinct heads of the messages from `begin` to before `end`."""
        return set(self.heads_of(begin, end))

    def newest(self, begin: int, end: int, first: int) -> dict[bytes, int]:
        """Return the last offset of each key in the messages from `begin` to before `end`. `first` is the offset of the
        message at `begin`."""
        return {key: offset for offset, (_, _, key) in enumerate(self.heads_of(begin, end), first)}

    def packing(self, offset: int) -> Packing:
        """Return the `Packing` with which the log appends the messages, from `offset` on."""
        return Packing([(*head, value) for head, value in zip(self.heads, self.values, strict=True)], offset)

    @property
    def size(self) -> int:
        """Return the approximate size of the batch in memory, in bytes: the encodings, and the objects that were
        encoded."""
        return self.encoded_bytes(0, len(self)) + size_decoded(self.values)

    def reach(self, begin: int, end: int, most_bytes: int) -> int:
        """Return the end of a range of messages from `begin` on. The range ends with the message at which the total
        size of the encodings reaches `most_bytes`. The end is the index after this message, at most `end`, and at least
        `begin + 1`."""
        bounds = self._bounds_of_values()
        return max(begin + 1, min(end, bisect_left(bounds, bounds[begin] + most_bytes)))

    def encoded_bytes(self, begin: int, end: int) -> int:
        """Return the total size of the encodings from `begin` to before `end`, in bytes."""
        bounds = self._bounds_of_values()
        return bounds[end] - bounds[begin]

    def _bounds_of_values(self) -> Sequence[int]:
        """Return the start of each encoding in the concatenation of all encodings, and the end of the last encoding."""
        if self._bounds is None:
            self._bounds = [0, *accumulate(map(len, self.values))]
        return self._bounds

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> PipelineMessage: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[PipelineMessage]: ...
    def __getitem__(self, place: int | slice) -> PipelineMessage | Sequence[PipelineMessage]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        return self.logged(range(len(self))[place], -1)


class _Listed(EncodedMessages):
    """A batch of message objects from a reader, with their encodings."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[PipelineMessage]) -> None:
        dumps = extended_json.dumps
        super().__init__(
            [(timestamp, BYTES[mode, op], namespace.encode()) for op, timestamp, namespace, _, mode, _ in messages],
            [dumps(message.data) for message in messages],
        )
        self._messages = messages

    def data(self, place: int) -> Mapping[str, Any]:
        return self._messages[place].data


def encoded(batch: Sequence[PipelineMessage]) -> EncodedMessages:
    """Return a batch as `EncodedMessages`; messages are encoded if they are not yet. Raises MessageRefused."""
    return batch if isinstance(batch, EncodedMessages) else _Listed(batch)


class JoinedMessages(EncodedMessages):
    """A batch of outbox records that were encoded in C, in one contiguous buffer.

    The data of a message is decoded on access. So the batch does not need the original rows.
    """

    __slots__ = ("rows", "table")

    def __init__(self, rows: EncodedRows, table: Sequence[Head]) -> None:
        """`rows` has the encoding and the kind of each message. The kind is the index of the message's head in
        `table`."""
        super().__init__((), rows)
        self.rows = rows
        self.table = table

    def heads_of(self, begin: int, end: int) -> Sequence[Head]:
        """See `EncodedMessages`. Each call creates a new list."""
        return list(map(self.table.__getitem__, self.rows.kinds[begin:end]))

    def number_of(self, heads: Collection[Head], begin: int, end: int) -> int:
        """Return the number of messages from `begin` to before `end` whose head is in `heads`."""
        kinds = self.rows.kinds
        return sum(kinds.count(kind, begin, end) for kind, head in enumerate(self.table) if head in heads)

    @property
    def size(self) -> int:
        return self.rows.size

    def reach(self, begin: int, end: int, most_bytes: int) -> int:
        """See `EncodedMessages`."""
        bounds = self.rows.bounds
        return max(begin + 1, min(end, bisect_left(bounds, bounds[begin] + most_bytes, begin, len(self) + 1)))

    def encoded_bytes(self, begin: int, end: int) -> int:
        """See `EncodedMessages`."""
        return int(self.rows.bounds[end] - self.rows.bounds[begin])

    def data(self, place: int) -> Mapping[str, Any]:
        """See `EncodedMessages`."""
        return extended_json.loads(self.rows[place])

    def kinds(self, begin: int, end: int) -> Collection[Head]:
        """See `EncodedMessages`."""
        return {head for kind, head in enumerate(self.table) if self.rows.kinds.find(kind, begin, end) >= 0}

    def newest(self, begin: int, end: int, first: int) -> dict[bytes, int]:
        """See `EncodedMessages`."""
        found: dict[bytes, int] = {}
        for kind, (_, _, key) in enumerate(self.table):
            place = self.rows.kinds.rfind(kind, begin, end)
            if place >= 0:
                found[key] = max(first + place - begin, found.get(key, first))
        return found

    def packing(self, offset: int) -> Packing:
        """See `EncodedMessages`."""
        return _JoinedPacking(self, offset)


class _JoinedPacking(Packing):
    """`Packing` of joined messages, done in C."""

    def __init__(self, batch: JoinedMessages, offset: int) -> None:
        super().__init__((), offset)
        self._batch = batch
        self._taken = 0

    def take(self, most_bytes: int | None) -> Packed:
        batch, begin, first = self._batch, self._taken, self._offset
        end = len(batch)
        if most_bytes is None:
            bounds, (_, _, key) = batch.rows.bounds, batch.table[batch.rows.kinds[begin]]
            end, room = begin + 1, FIXED_BYTES + len(key) + bounds[begin + 1] - bounds[begin]
        else:
            room = max(0, most_bytes)
        data, count = batch.rows.packed(begin, end, batch.table, offset=first, room=room)
        self._taken, self._offset = begin + count, first + count
        return Packed(data, first, first + count, batch.newest(begin, begin + count, first))

    @property
    def done(self) -> bool:
        return self._taken == len(self._batch)


class UnreadableEntry(PipelineError):
    """A log entry does not contain a message. Another version of the library wrote the entry, or a program that is not
    a pipeline."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(
            f"offset {offset} of the log holds no message",
            evidence=why,
            next_step="use the version of this library that wrote it, or a new folder",
        )


def message_of(entry: LogEntry) -> PipelineMessage:
    """Return the message in a log entry. Raises UnreadableEntry if the entry does not contain a message."""
    offset, timestamp, byte, key, value = entry
    parts = PARTS.get(byte)
    if parts is None:
        mode, op = parts_of(byte)
        raise UnreadableEntry(offset, f"its mode byte {byte} is unknown: mode {mode}, op {op}")
    try:
        data = Encoded(extended_json.loads(value), value)
        return PipelineMessage(parts[1], timestamp, key.decode(), data, parts[0], offset)
    except (ValueError, HarvestError) as error:
        raise UnreadableEntry(offset, one_line(error)) from error
