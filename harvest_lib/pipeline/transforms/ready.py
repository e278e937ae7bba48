"""The built-in transforms: pick, omit, rename, redact, route, cloud_events.

A field is a key at the top level of a message's data. A missing field is no error, since a delete may have only the
fields of its key.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.pipeline.namespace import Pattern, compiled

REDACTED = "[redacted]"

_OPS = ("insert", "update", "delete", "command", "noop")
_REFERENCE = re.compile(r"\\(?:g<(\w+)>|([1-9][0-9]?)|(.?))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pick:
    """Keep only the fields in `fields`, in the order of `fields`."""

    fields: Sequence[str]

    def __call__(self, message: PipelineMessage) -> PipelineMessage:
        data = message.data
        return message._replace(data={name: data[name] for name in self.fields if name in data})


@dataclass(frozen=True, slots=True)
class Omit:
    """Remove the fields in `fields`."""

    fields: frozenset[str]

    def __call__(self, message: PipelineMessage) -> PipelineMessage:
        return message._replace(data={name: each for name, each in message.data.items() if name not in self.fields})


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename fields. All renames take effect together, so that two fields can swap their names."""

    names: Mapping[str, str]

    def __call__(self, message: PipelineMessage) -> PipelineMessage:
        """Return the message with renamed fields. Raises ValueError if two fields would have the same name."""
        data = {self.names.get(name, name): each for name, each in message.data.items()}
        if len(data) < len(message.data):
            twice = sorted({new for old, new in self.names.items() if new in message.data and old in message.data})
            raise ValueError(f"two fields would have one name: {', '.join(twice)}")
        return message._replace(data=data)


@dataclass(frozen=True, slots=True)
class Redact:
    """Replace the values of the fields in `fields` by `by`. A null stays null."""

    fields: Sequence[str]
    by: Any = REDACTED

    def __call__(self, message: PipelineMessage) -> PipelineMessage:
        data = dict(message.data)
        for name in self.fields:
            if data.get(name) is not None:
                data[name] = self.by
        return message._replace(data=data)


@dataclass(frozen=True, slots=True)
class Route:
    """Change the namespace of a message to `to`, in which `\\1` or `\\g<name>` stands for a group of `find`.

    Without `find`, all messages are routed. With `find`, a message is routed if the expression matches the whole
    namespace of the message. `find` has the syntax of Go, as filters have. Results are cached: there are few namespaces
    and many messages.
    """

    to: str
    find: Pattern | None = None
    _template: str = ""
    _routed: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, to: str, find: str | None = None) -> "Route":
        """Return the route for `to` and the expression `find`. Raises ValueError if either of them is invalid."""
        if find is None:
            return cls(to=to)
        pattern = compiled(find)
        return cls(to, pattern, _template(to, {str(n): n for n in range(pattern.groups + 1)} | pattern.groupindex))

    def __call__(self, message: PipelineMessage) -> PipelineMessage:
        if self.find is None:
            return message._replace(namespace=self.to)
        routed = self._routed.get(message.namespace)
        if routed is None:
            match = self.find.fullmatch(message.namespace)
            routed = message.namespace if match is None else self._template.format(match[0], *match.groups(""))
            self._routed[message.namespace] = routed
        return message._replace(namespace=routed)


def _template(to: str, groups: Mapping[str, int]) -> str:
    """Return `to` as a template for `str.format`, in which the number of a group replaces each reference to it.
    `groups` maps the name of each group to its number. Raises ValueError for an unknown group."""

    def part(reference: re.Match[str]) -> str:
        name, number, other = reference.groups()
        if other is not None:
            if other.isalnum() or not other:
                raise ValueError(f"`to` has a backslash that begins no group: {reference[0]}")
            return other if other == "\\" else reference[0]
        if (name or number) not in groups:
            raise ValueError(f"`to` has a group that `find` has not: {reference[0]}")
        return f"{{{groups[name or number]}}}"

    return _REFERENCE.sub(part, to.replace("{", "{{").replace("}", "}}"))


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """Wrap a message's data in the JSON envelope of CloudEvents 1.0.

    The `id` consists of the message's time and offset. A message that is sent twice has the same `id` both times, so
    that readers can recognize the repeated message.

    `source`: the origin of the events, a URI reference. `type`: their type, in which `{namespace}` and `{op}` are
    replaced. `subject`: the name of the field whose value becomes the event's subject.
    """

    source: str
    type: str = "{namespace}.{op}"
    subject: str | None = None

    def __call__(self, message: PipelineMessage) -> PipelineMessage:
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
