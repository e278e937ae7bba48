"""Messages as entries of the commit log, and back."""

from collections.abc import Iterable

from harvest_lib.errors import HarvestError, PipelineError
from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.commit_log.entry import Entry, Unnumbered, mode_byte, parts_of
from harvest_lib.pipeline.extended_json import Encoded
from harvest_lib.pipeline.message import Message, Mode, Op
from harvest_lib.pipeline.stop_reason import one_line

_BYTES = {(mode, op): mode_byte(mode, op) for mode in Mode for op in Op}
_PARTS = {byte: (mode, op) for (mode, op), byte in _BYTES.items()}
_NOOPS = frozenset(_BYTES[mode, Op.NOOP] for mode in Mode)


class UnreadableEntry(PipelineError):
    """An entry holds no message: another version wrote it, or no pipeline did."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(
            f"offset {offset} of the log holds no message",
            evidence=why,
            next_step="use the version of this library that wrote it, or a new folder",
        )


def packed(messages: Iterable[Message]) -> list[Unnumbered]:
    """Return each message as the log takes it. Raises MessageRefused."""
    dumps = extended_json.dumps
    return [
        (timestamp, _BYTES[mode, op], namespace.encode(), dumps(data))
        for op, timestamp, namespace, data, mode, _ in messages
    ]


def is_noop(entry: Entry) -> bool:
    """Tell whether an entry says where a reader stands, without reading its data."""
    return entry.mode in _NOOPS


def message_of(entry: Entry) -> Message:
    """Return an entry's message. Raises UnreadableEntry where it is none."""
    offset, timestamp, byte, key, value = entry
    parts = _PARTS.get(byte)
    if parts is None:
        mode, op = parts_of(byte)
        raise UnreadableEntry(offset, f"its mode byte {byte} is none that is known: mode {mode}, op {op}")
    try:
        data = Encoded(extended_json.loads(value), value)
        return Message(parts[1], timestamp, key.decode(), data, parts[0], offset)
    except (ValueError, HarvestError) as error:
        raise UnreadableEntry(offset, one_line(error)) from error
