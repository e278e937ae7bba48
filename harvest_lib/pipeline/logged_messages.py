"""Messages of the log as writers get them: bytes, and a `PipelineMessage` for each that is read.

The last messages stay in memory, so that writers that keep up need not read them from the log.
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
    """Consecutive messages of the log, of one batch or several."""

    def __init__(self, first: int, parts: Sequence[tuple[EncodedMessages, int, int]]) -> None:
        """`parts` are batches, each with the first place that belongs to the run, and the place after the last."""
        self.first = first
        self.parts = parts
        self._ends = list(accumulate(end - begin for _, begin, end in parts))

    @cached_property
    def heads(self) -> Sequence[Head]:
        """Return the head of each."""
        return _joined([batch.heads_of(begin, end) for batch, begin, end in self.parts])

    @cached_property
    def values(self) -> Sequence[bytes]:
        """Return the encoded data of each."""
        return _joined([batch.values[begin:end] for batch, begin, end in self.parts])

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def next(self) -> int:
        """Return the offset after the last."""
        return self.first + len(self)

    @property
    def newest(self) -> Mapping[bytes, int]:
        """Return the last offset of each key."""
        found: dict[bytes, int] = {}
        first = self.first
        for batch, begin, end in self.parts:
            found |= batch.newest(begin, end, first)
            first += end - begin
        return found

    def entries(self) -> list[LogEntry]:
        """Return them as they would be read from the log."""
        return [
            LogEntry(offset, timestamp, byte, key, value)
            for offset, ((timestamp, byte, key), value) in enumerate(
                zip(self.heads, self.values, strict=True), self.first
            )
        ]

    def message(self, number: int) -> PipelineMessage:
        """Return one message; its data is not to be changed."""
        part = bisect_right(self._ends, number)
        batch, _, end = self.parts[part]
        return batch.logged(end - (self._ends[part] - number), self.first + number)

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a field in each message, None where the field is missing."""
        return _joined([batch.column(name, begin, end) for batch, begin, end in self.parts])

    def selected(self, wanted: Callable[[Head], bool]) -> "LoggedMessages":
        """Return the messages whose heads are wanted."""
        kinds = {head for batch, begin, end in self.parts for head in batch.kinds(begin, end)}
        kept = {head for head in kinds if wanted(head)}
        return LoggedMessages(self, kept, is_all=kept == kinds)


class LoggedMessages(Sequence[PipelineMessage]):
    """Some messages of a run, in its order, without NOOPs. A message object is made at each access."""

    def __init__(self, run: MessageRun, kinds: Collection[Head], *, is_all: bool) -> None:
        """`kinds` are the heads of its messages; `is_all`: it has every message of the run."""
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
        """Return their batches, each with its first place and the place after its last, if all are joined."""
        found = [part for part in self._run.parts if isinstance(part[0], JoinedMessages)]
        return cast("Sequence[tuple[JoinedMessages, int, int]]", found) if len(found) == len(self._run.parts) else None

    @cached_property
    def heads(self) -> Sequence[Head]:
        """Return timestamp, mode byte and key of each."""
        return self._of(self._run.heads)

    @cached_property
    def values(self) -> Sequence[bytes]:
        """Return the encoded data of each."""
        return self._of(self._run.values)

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a field in each message, None where the field is missing."""
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
    """Return the messages that are written, as they came if they are of the log."""
    if isinstance(messages, LoggedMessages):
        return messages
    return [message for message in messages if message.op is not Op.NOOP]


def namespaces_and_times(messages: Sequence[PipelineMessage]) -> list[tuple[str, int]]:
    """Return namespace and timestamp of each."""
    if isinstance(messages, LoggedMessages):
        return [(key.decode(), timestamp) for timestamp, _, key in messages.heads]
    return [(message.namespace, message.timestamp) for message in messages]


def _joined(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


class MessageCache:
    """Batches by their offsets in the log. One thread adds to it, any number of threads read it.

    It forgets the oldest when they take more than `most_bytes`.
    """

    def __init__(self, end: int = 0, *, most_bytes: int = _MOST_BYTES) -> None:
        """`end` is the end of the log, before anything is added."""
        self.end = end
        """Messages behind it in the log are of a batch that is still being appended."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._firsts: list[int] = []
        self._batches: list[tuple[EncodedMessages, int]] = []

    def add(self, first: int, batch: EncodedMessages) -> None:
        """Keep a batch under its offsets in the log, from `first` on; a batch that is too large is not kept."""
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
        """Return the messages from one offset to before another, `most` of them at most, and no more once their
        encodings reach `most_bytes`; None if the first message is forgotten, or never was here."""
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
