"""Messages as entries of the commit log, and back."""

from collections.abc import Iterable

from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.commit_log.entry import Entry, Unnumbered, mode_byte, parts_of
from harvest_lib.pipeline.extended_json import Encoded
from harvest_lib.pipeline.message import Message, Mode, Op

NOOP = Op.NOOP

_BYTES = {(mode, op): mode_byte(mode, op) for mode in Mode for op in Op}
_PARTS = {byte: (mode, op) for (mode, op), byte in _BYTES.items()}


def packed(messages: Iterable[Message]) -> list[Unnumbered]:
    """Return each message as the log takes it. Raises MessageRefused."""
    dumps = extended_json.dumps
    return [
        (timestamp, _BYTES[mode, op], namespace.encode(), dumps(data))
        for op, timestamp, namespace, data, mode, _ in messages
    ]


def op_of(entry: Entry) -> Op:
    """Return what an entry's message does, without reading its data."""
    return _PARTS[entry.mode][1]


def message_of(entry: Entry) -> Message:
    """Return an entry's message. Raises ValueError where it is none."""
    parts = _PARTS.get(entry.mode)
    if parts is None:
        raise ValueError(f"its mode byte {entry.mode} is none that is known: {parts_of(entry.mode)}")
    mode, op = parts
    offset, timestamp, _, key, value = entry
    data = Encoded(extended_json.loads(value), value)
    return Message(op, timestamp, key.decode(), data, mode, offset)
