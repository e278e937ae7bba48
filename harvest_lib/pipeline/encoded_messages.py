"""A batch of encoded messages, of which no object is made until one is read.

Reader, commit log and writers pass bytes on: of each message its head, which many share, and its encoded data. A batch
is a sequence of messages all the same. Reading one makes a `Message` at that moment.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.commit_log.entry import mode_byte
from harvest_lib.pipeline.extended_json import Encoded
from harvest_lib.pipeline.heads import Head
from harvest_lib.pipeline.message import Message, Mode, Op

BYTES = {(mode, op): mode_byte(mode, op) for mode in Mode for op in Op}
"""The mode byte of each mode and op."""
PARTS = {byte: (mode, op) for (mode, op), byte in BYTES.items()}
NOOPS = frozenset(BYTES[mode, Op.NOOP] for mode in Mode)


class EncodedMessages(Sequence[Message]):
    """A batch. A reader that can encode its messages without making them yields one of a class of its own."""

    __slots__ = ("heads", "values")

    def __init__(self, heads: Sequence[Head], values: Sequence[bytes]) -> None:
        """`values` are the data of each, as `extended_json.dumps` encodes it."""
        self.heads = heads
        self.values = values

    @abstractmethod
    def data(self, place: int) -> Mapping[str, Any]:
        """Return the data of one message."""

    def column(self, name: str, begin: int, end: int) -> Sequence[Any]:
        """Return the values of a field in the messages from `begin` to before `end`, None where there is no such."""
        return [self.data(place).get(name) for place in range(begin, end)]

    def logged(self, place: int, offset: int) -> Message:
        """Return a message as it is in the log: under its offset, its data not to be changed."""
        timestamp, byte, key = self.heads[place]
        mode, op = PARTS[byte]
        return Message(op, timestamp, key.decode(), Encoded(self.data(place), self.values[place]), mode, offset)

    @property
    def size(self) -> int:
        """Return the bytes of all encodings."""
        return sum(map(len, self.values))

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | Sequence[Message]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        at = range(len(self))[place]
        timestamp, byte, key = self.heads[at]
        mode, op = PARTS[byte]
        return Message(op, timestamp, key.decode(), self.data(at), mode)


class _Listed(EncodedMessages):
    """Messages that a reader has made itself."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        dumps = extended_json.dumps
        super().__init__(
            [(timestamp, BYTES[mode, op], namespace.encode()) for op, timestamp, namespace, _, mode, _ in messages],
            [dumps(message.data) for message in messages],
        )
        self._messages = messages

    def data(self, place: int) -> Mapping[str, Any]:
        return self._messages[place].data


def encoded(batch: Sequence[Message]) -> EncodedMessages:
    """Return a batch with its encodings. Raises MessageRefused."""
    return batch if isinstance(batch, EncodedMessages) else _Listed(batch)
