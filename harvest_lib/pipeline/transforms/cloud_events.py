"""The envelope of CloudEvents 1.0, in its JSON form, around a message's data.

A message that is sent again has the same `id`, made of its offset and time, so readers can recognize it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from harvest_lib.pipeline.message import Message

_OPS = ("insert", "update", "delete", "command", "noop")


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """`source` is the origin of events, a URI reference; `type` is their type, with `{namespace}` and `{op}` in it.

    `subject` names a field whose content is the event's subject.
    """

    source: str
    type: str = "{namespace}.{op}"
    subject: str | None = None

    def __call__(self, message: Message) -> Message:
        kind = self.type.replace("{namespace}", message.namespace).replace("{op}", _OPS[message.op])
        at = datetime.fromtimestamp(message.timestamp / 1000, UTC)
        envelope = {
            "specversion": "1.0",
            "id": f"{message.timestamp}-{message.offset}",
            "source": self.source,
            "type": kind,
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
        }
        if self.subject is not None and message.data.get(self.subject) is not None:
            envelope["subject"] = str(message.data[self.subject])
        return message._replace(data={**envelope, "data": message.data})
