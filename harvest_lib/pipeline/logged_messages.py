"""Messages of the log in memory, as writers get them: encoded, with a `PipelineMessage` created on each access.

A cache has the messages that were appended last, so that writers close to the log's end need not read from the disk.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, cast, overload

from harvest_lib.pipeline.bounds import BULK_BYTES
from harvest_lib.pipeline.commit_log.entry import LogEntry
from harvest_lib.pipeline.encoded_messages import EncodedMessages, Head, JoinedMessages
from harvest_lib.pipeline.message import Op, PipelineMessage

_MOST_BYTES = 32 << 20


class MessageRun:
    """Consecutive messages of the log, from one or several batches in memory."""

    def __init__(self, first: int, parts: Sequence[tuple[EncodedMessages, int, int]]) -> None:
        """`first` is the offset of the first message. `parts` are batches, each with the range of its messages that
        belong to the run: the index of the first message, and the index after the last message."""
        self.first = first
        self.parts = parts
        self._ends = list(accumulate(end - begin for _, begin, end in parts))

    @cached_property
    def heads(self) -> Sequence[Head]:
        """Return the head of each message."""
        return _joined([batch.heads_of(begin, end) for batch, begin, end in self.parts])

    @cached_property
    def values(self) -> Sequence[bytes]:
        """Return the encoded data of each message."""
        return _joined([batch.values[begin:end] for batch, begin, end in self.parts])

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def next(self) -> int:
        """Return the offset after the last message."""
        return self.first + len(self)

    @property
    def newest(self) -> Mapping[bytes, int]:
        """Return the last offset of each key (namespace) in the run."""
        found: dict[bytes, int] = {}
        first = self.first
        for batch, begin, end in self.parts:
            found |= batch.newest(begin, end, first)
            first += end - begin
        return found

    def entries(self) -> list[LogEntry]:
        """Return the messages as entries, equal to the entries in the log."""
        return [
            LogEntry(offset, timestamp, byte, key, value)
            for offset, ((timestamp, byte, key), value) in enumerate(
                zip(self.heads, self.values, strict=True), self.first
            )
        ]

    def message(self, number: int) -> PipelineMessage:
        """Return the message at index `number`. Its data must not be modified."""
        part = bisect_right(self._ends, number)
        batch, _, end = self.parts[part]
        return batch.logged(end - (self._ends[part] - number), self.first + number)

    def column(self, name: str) -> Sequence[Any]:
        """Return the value of a field in each message, None if a message lacks the field."""
        return _joined([batch.column(name, begin, end) for batch, begin, end in self.parts])

    def selected(self, wanted: Callable[[Head], bool]) -> "LoggedMessages":
        """Return the messages for whose head `wanted` returns True."""
        kinds = {head for batch, begin, end in self.parts for head in batch.kinds(begin, end)}
        kept = {head for head in kinds if wanted(head)}
        return LoggedMessages(self, kept, is_all=kept == kinds)


class LoggedMessages(Sequence[PipelineMessage]):
    """Selected messages of a run, in order and without NOOPs. Each access to an element creates a message object."""

    def __init__(self, run: MessageRun, kinds: Collection[Head], *, is_all: bool) -> None:
        """`kinds` are the heads of the selected messages. `is_all`: every message of the run is selected."""
        self.kinds = kinds
        self._run = run
        self._is_all = is_all

    @cached_property
    def _numbers(self) -> Sequence[int]:
        if self._is_all:
            return range(len(self._run))
        return [number for number, head in enumerate(self._run.heads) if head in self.kinds]

    @cached_property
    def joined(self) -> Sequence[tuple[JoinedMessages, int, int]] | None:
        """Return the run's parts (batch, first index, index after the last) if all batches are joined, else None."""
        found = [part for part in self._run.parts if isinstance(part[0], JoinedMessages)]
        return cast("Sequence[tuple[JoinedMessages, int, int]]", found) if len(found) == len(self._run.parts) else None

    @cached_property
    def heads(self) -> Sequence[Head]:
        """Return the head (timestamp, mode byte, key) of each message."""
        return self._of(self._run.heads)

    @cached_property
    def values(self) -> Sequence[bytes]:
        """Return the encoded data of each message."""
        return self._of(self._run.values)

    def column(self, name: str) -> Sequence[Any]:
        """Return the value of a field in each message, None if a message lacks the field."""
        return self._of(self._run.column(name))

    def _of(self, column: Sequence[Any]) -> Sequence[Any]:
        return column if isinstance(self._numbers, range) else [column[number] for number in self._numbers]

    def __len__(self) -> int:
        if self.joined is not None:
            return sum(batch.number_of(self.kinds, begin, end) for batch, begin, end in self.joined)
        return len(self._numbers)

    def __iter__(self) -> Iterator[PipelineMessage]:
        return map(self._run.message, self._numbers)

    @overload
    def __getitem__(self, place: int) -> PipelineMessage: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[PipelineMessage]: ...
    def __getitem__(self, place: int | slice) -> PipelineMessage | Sequence[PipelineMessage]:
        found = self._numbers[place]
        return self._run.message(found) if isinstance(found, int) else [self._run.message(each) for each in found]


def without_noops(messages: Sequence[PipelineMessage]) -> Sequence[PipelineMessage]:
    """Return the messages without NOOPs. `LoggedMessages` never have NOOPs, and are returned unchanged."""
    if isinstance(messages, LoggedMessages):
        return messages
    return [message for message in messages if message.op is not Op.NOOP]


def namespaces_and_times(messages: Sequence[PipelineMessage]) -> list[tuple[str, int]]:
    """Return the namespace and the timestamp of each message."""
    if isinstance(messages, LoggedMessages):
        return [(key.decode(), timestamp) for timestamp, _, key in messages.heads]
    return [(message.namespace, message.timestamp) for message in messages]


def _joined(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


class MessageCache:
    """Cache of the last appended batches, by their offsets in the log. A single thread adds batches, any thread reads.

    If the batches take more than `most_bytes` of memory, the oldest batches are removed.
    """

    def __init__(self, end: int = 0, *, most_bytes: int = _MOST_BYTES) -> None:
        """`end` is the present end of the log."""
        self.end = end
        """The end of the last complete batch. Later messages in the log belong to a batch that is being appended."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._firsts: list[int] = []
        self._batches: list[tuple[EncodedMessages, int]] = []

    def add(self, first: int, batch: EncodedMessages) -> None:
        """Add a batch whose first offset in the log is `first`. A batch larger than the whole cache is not stored."""
        size = batch.size
        with self._lock:
            self.end = first + len(batch)
            if size > self._most_bytes:
                return
            self._firsts.append(first)
            self._batches.append((batch, size))
            self._bytes += size
            while self._bytes > self._most_bytes:
                self._bytes -= self._batches[0][1]
                del self._firsts[0], self._batches[0]

    def run(self, begin: int, end: int, most: int, most_bytes: int = BULK_BYTES) -> MessageRun | None:
        """Return cached messages from offset `begin` to before `end`. The run has at most `most` messages, and ends
        with the message at which the total size of the encodings reaches `most_bytes`. Return None if the message at
        `begin` is not in the cache."""
        end = min(end, begin + most)
        parts, at, left = [], begin, most_bytes
        with self._lock:
            number = bisect_right(self._firsts, begin) - 1
            while 0 <= number < len(self._firsts) and at < end and left > 0:
                first, (batch, _) = self._firsts[number], self._batches[number]
                if not first <= at < first + len(batch):
                    break
                place = batch.reach(at - first, min(end - first, len(batch)), left)
                parts.append((batch, at - first, place))
                left -= batch.encoded_bytes(at - first, place)
                if place < len(batch):
                    break
                at, number = first + len(batch), number + 1
        return MessageRun(begin, parts) if parts else None
