"""Messages as entries of the commit log, and back."""

from collections.abc import Iterable, Sequence

from harvest_lib.errors import HarvestError, PipelineError
from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.commit_log.entry import Entry, Unnumbered, parts_of
from harvest_lib.pipeline.encoded_messages import PARTS, encoded
from harvest_lib.pipeline.extended_json import Encoded
from harvest_lib.pipeline.joined_messages import JoinedEntries, JoinedMessages
from harvest_lib.pipeline.message import Message
from harvest_lib.pipeline.stop_reason import one_line


class UnreadableEntry(PipelineError):
    """An entry holds no message: another version wrote it, or no pipeline did."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(
            f"offset {offset} of the log holds no message",
            evidence=why,
            next_step="use the version of this library that wrote it, or a new folder",
        )


def packed(messages: Sequence[Message]) -> Iterable[Unnumbered]:
    """Return each message as the log takes it. Raises MessageRefused."""
    batch = encoded(messages)
    if isinstance(batch, JoinedMessages):
        return JoinedEntries(batch)
    return [(*head, value) for head, value in zip(batch.heads, batch.values, strict=True)]


def message_of(entry: Entry) -> Message:
    """Return an entry's message. Raises UnreadableEntry where it is none."""
    offset, timestamp, byte, key, value = entry
    parts = PARTS.get(byte)
    if parts is None:
        mode, op = parts_of(byte)
        raise UnreadableEntry(offset, f"its mode byte {byte} is none that is known: mode {mode}, op {op}")
    try:
        data = Encoded(extended_json.loads(value), value)
        return Message(parts[1], timestamp, key.decode(), data, parts[0], offset)
    except (ValueError, HarvestError) as error:
        raise UnreadableEntry(offset, one_line(error)) from error
